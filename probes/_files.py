"""The one place where probes touch the machine: its text files, below a replaceable root, and commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

Run = Callable[[Sequence[str]], str]
"""Runs a command and returns what it printed on standard output; raises OSError when it cannot."""

_SIZE_LINE = re.compile(r"^(\S+):[ \t]+([0-9]{1,19}) kB[ \t]*$", re.MULTILINE)


class Files:
    """The text files of one machine. What cannot be read is collected as a warning, never raised."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.warnings: list[str] = []

    def text(self, path: str) -> str | None:
        """The text of an absolute path of the machine.

        None when it does not exist, which is an answer; None and a warning when it exists and cannot be read.
        """
        try:
            return read_text(self.root, path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            self.warnings.append(f"{path}: {describe(error)}")
            return None

    def integer(self, path: str) -> int | None:
        """The integer that a kernel file holds; None as for `text`, and with a warning when it is none."""
        text = self.text(path)
        if text is None:
            return None
        value = to_integer(text.strip())
        if value is None:
            self.warnings.append(f"{path}: not an integer: {excerpt(text)}")
        return value


def read_text(root: Path, path: str) -> str:
    """The text of an absolute path of the machine at `root`. Raises OSError; ValueError for a NUL in it."""
    return (root / path.lstrip("/")).read_bytes().decode("utf-8", "replace")


def to_integer(text: str) -> int | None:
    """A decimal integer as kernel files write it: ASCII digits and a sign, nothing else; None otherwise."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,20}", text) else None


def sizes_in_bytes(text: str) -> dict[str, int]:
    """The `Name:   123 kB` lines of meminfo, smaps_rollup and status, in bytes. The kernel's kB are KiB."""
    return {name: int(kib) * 1024 for name, kib in _SIZE_LINE.findall(text)}


def describe(error: Exception) -> str:
    """An error in few words, without the path: the caller names it as the machine knows it."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def excerpt(text: str) -> str:
    """The start of a text that was not understood, quoted for a warning."""
    return repr(text[:40]) if text.strip() else "empty"


def run_command(argv: Sequence[str]) -> str:
    """What a command prints, whatever its exit status: `sysctl` fails when one of many names is unknown."""
    import subprocess

    try:
        return subprocess.run(argv, capture_output=True, timeout=5, check=False).stdout.decode("utf-8", "replace")
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(str(error)) from error
