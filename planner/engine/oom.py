"""Whether the kernel ended a process for want of memory: its own counters, before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

OomKills = Mapping[str, int]
"""Kills for want of memory so far, by the file that counts them."""

_VMSTAT = "/proc/vmstat"


def count_kills(root: Path = Path("/")) -> OomKills:
    """The counters of this process's control groups and of the whole machine; empty where there are none.

    memory.events (version 2) and memory.oom_control (version 1) of the group that a child shares with us; the
    one of /proc/vmstat counts every group of the machine. (Kernel: admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst.)
    """
    kills = {}
    for path in (*_group_files(root), _VMSTAT):
        for line in _text(root, path).splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill" and number.strip().isdecimal():
                kills[path] = int(number)
    return kills


def kills_since(before: OomKills, now: OomKills) -> str | None:
    """The counter that rose, the nearest first: empty where none did, None where none can be read."""
    if not now:
        return None
    return next((f"oom_kill in {path} rose" for path, count in now.items() if count > before.get(path, 0)), "")


def _group_files(root: Path) -> Iterator[str]:
    for line in _text(root, "/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        base, name = (
            ("/sys/fs/cgroup/memory", "memory.oom_control") if controllers else ("/sys/fs/cgroup", "memory.events")
        )
        # A container may see its own group as the root of the hierarchy.
        yield from dict.fromkeys((f"{base}{path.rstrip('/')}/{name}", f"{base}/{name}"))


def _text(root: Path, path: str) -> str:
    try:
        return (root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
