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

Planner = Callable[..., subprocess.CompletedProcess[str]]


def planner_command(*arguments: object, embedded: bool = True) -> list[str]:
    """The command line that runs planner; `embedded` False hides the embedded engine."""
    program = PROGRAM if embedded else WITHOUT_EMBEDDED + PROGRAM
    return [sys.executable, "-c", program, *map(str, arguments)]
