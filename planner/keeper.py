"""What is done when we are gone, also when we are killed: by a shell at the end of a pipe that we hold."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

END_GROUP = 'kill -9 "-$1"'
REMOVE_FOLDER = 'rm -rf -- "$1"'
_KEEPER = 'trap "" INT TERM HUP; read -r word; [ "$word" = over ] || '


class Keeper:
    """Does one thing when we are gone without having let it go."""

    def __init__(self, deed: str, argument: str) -> None:
        """`deed` is for the shell, with `argument` as its `$1`. Windows has no such shell: nothing is done there."""
        self._process: subprocess.Popen[bytes] | None = None
        if sys.platform == "win32":
            return
        import subprocess  # at the moment of use: a prediction starts nothing

        # Without a shell, what comes after us must do: the parent-death signal, the next start.
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER + deed, "keeper", argument],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def dismiss(self) -> None:
        """Let it go: everything ended in order. Safe to call twice."""
        if self._process is None or self._process.stdin is None or self._process.stdin.closed:
            return
        with contextlib.suppress(OSError), self._process.stdin as pipe:
            pipe.write(b"over\n")
        self._process.wait()
