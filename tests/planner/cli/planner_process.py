"""planner as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

PROGRAM = (
    "import signal\n"
    # A test runner in the background hands an ignored interrupt on.
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from planner.cli.main import main\n"
    "main()\n"
)
WITHOUT_EMBEDDED = "import planner.engine.find as find\nfind.EMBEDDED_PACKAGE = 'no_such_package_anywhere'\n"
WITHOUT_LIBRARY = "import planner.engine.dry_run_library as it\nit._PACKAGE = 'no_such_package_anywhere'\n"

Planner = Callable[..., subprocess.CompletedProcess[str]]


def planner_command(*arguments: object, embedded: bool = True, library: bool = True) -> list[str]:
    """The command line that runs planner; `embedded` False hides the embedded engine, `library` llama-cpp-python."""
    hidden = ("" if embedded else WITHOUT_EMBEDDED) + ("" if library else WITHOUT_LIBRARY)
    return [sys.executable, "-c", hidden + PROGRAM, *map(str, arguments)]
