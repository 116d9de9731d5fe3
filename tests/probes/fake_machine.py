"""Fake machines: file trees in a temporary folder that the probes read instead of `/`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

KIB = 1024
MIB = 1024**2
GIB = 1024**3

MEMINFO = """\
MemTotal:       24684084 kB
MemFree:        15897888 kB
MemAvailable:   22493612 kB
Buffers:          115700 kB
Cached:          6421060 kB
SwapTotal:       2097152 kB
SwapFree:        1048576 kB
HugePages_Total:       0
"""
"""A measured machine of 24 GB; the swap is made up."""


class FakeMachine:
    """A file tree with the files of one machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, content: str | bytes) -> None:
        """One file, by the absolute path that the machine knows it by."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    def link(self, path: str, target: str) -> None:
        """A symbolic link to another path of the machine."""
        link = self.root / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(self.root / target.lstrip("/"))

    def make_unreadable(self, path: str) -> None:
        """A folder in the file's place: also root, which file modes do not stop, cannot read it."""
        (self.root / path.lstrip("/")).mkdir(parents=True)

    def group_v2(self, directory: str, *, current: int, stat: Mapping[str, int], **limits: str | int) -> None:
        """A version 2 group; `limits` are `max` and `high`."""
        for name, limit in {"max": "max", "high": "max", **limits}.items():
            self.write(f"{directory}/memory.{name}", f"{limit}\n")
        self.write(f"{directory}/memory.current", f"{current}\n")
        self.write(f"{directory}/memory.stat", stat_text(stat))

    def group_v1(self, directory: str, *, usage: int, stat: Mapping[str, int], limit: int) -> None:
        """A version 1 memory group."""
        self.write(f"{directory}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{directory}/memory.usage_in_bytes", f"{usage}\n")
        self.write(f"{directory}/memory.stat", stat_text(stat))


def stat_text(stat: Mapping[str, int]) -> str:
    return "".join(f"{name} {value}\n" for name, value in stat.items())
