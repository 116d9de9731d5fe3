"""How the text of kernel files is read as numbers, and how a command is run."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SIZE_LINE = re.compile(r"^(\S+):[ \t]+([0-9]{1,19}) kB[ \t]*$", re.MULTILINE)


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
