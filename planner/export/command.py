"""A launch as a command line to paste."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

SERVING_ARGUMENTS = ("--host", "127.0.0.1", "--port", "8080")
"""Where the pasted server listens. They decide no memory; a measurement takes a free port instead."""


GHOST_STAND_IN = "MODEL.gguf"
"""What stands in a command for a ghost, whose own file is gone when the command is read."""


def shell_command(command: Sequence[str], *, ghost: bool = False) -> str:
    """The command of a measured run, quoted for a POSIX shell (on Windows for cmd), with a port to serve on."""
    words = [*command, *SERVING_ARGUMENTS]
    if ghost:
        words[words.index("--model") + 1] = GHOST_STAND_IN
    if sys.platform == "win32":
        return " ".join(f'"{word}"' if " " in word else word for word in words)
    return shlex.join(words)
