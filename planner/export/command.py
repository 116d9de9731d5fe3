"""A launch as a command line to paste."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from planner.errors import UsageError
from planner.model.marks import is_ghost_name

SERVING_ARGUMENTS = ("--host", "127.0.0.1", "--port", "8080")
"""Where the pasted server listens. They decide no memory; a measurement takes a free port instead."""

GHOST_STAND_IN = "MODEL.gguf"
"""What stands in a command for a ghost, whose own file is gone when the command is read."""


def shell_command(command: Sequence[str], *, ghost: bool = False, stands_for: Path | None = None) -> str:
    """The command of a measured run, quoted for a POSIX shell (on Windows for cmd), with a port to serve on.

    Where a ghost ran, the file that it `stands_for` is named, else a stand-in. Raises UsageError for a command
    that names a ghost and does not say so: it would serve a model without weights.
    """
    words = [*command, *SERVING_ARGUMENTS]
    place = words.index("--model") + 1
    if ghost:
        words[place] = GHOST_STAND_IN if stands_for is None else str(stands_for)
    elif is_ghost_name(words[place]):
        raise UsageError(
            f"{words[place]} is a ghost: a header without weights, so there is nothing to serve.",
            "Name the model itself.",
        )
    if sys.platform == "win32":
        return " ".join(f'"{word}"' if " " in word else word for word in words)
    return shlex.join(words)
