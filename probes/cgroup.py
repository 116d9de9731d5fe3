"""What control groups allow this process: memory and processor time, over every ancestor of its group.

psutil ignores these limits, and a run that ignores them is killed (ComfyUI#14938: 90 GB allowed on a host of
1007 GB). Files: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from probes._files import excerpt, to_integer
from probes._groups import Group, own_groups
from probes.machine import Files, Where

UNLIMITED_BYTES = 1 << 62
"""From here on a limit is none. Version 1 writes "unlimited" as the most whole pages that fit into an int64:
0x7ffffffffffff000 with pages of 4 KiB, 0x7fffffffffff0000 with pages of 64 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """One memory limit of one group that this process is in."""

    source: str
    """The file that states the limit, as the machine knows it: `/sys/fs/cgroup/a/memory.max`."""
    limit_bytes: int
    """What the group and all below it may hold."""
    used_bytes: int | None
    """What they hold now, page cache included (memory.current, memory.usage_in_bytes). None: not readable."""
    reclaimable_bytes: int
    """The part of `used_bytes` that the kernel gives up for a new allocation: inactive_file + active_file.

    Both lists, as in MemAvailable: a GGUF that was read or mapped is on either, and dropped under pressure.
    What cannot be dropped, tmpfs and mlocked pages, is on neither list and so stays counted as used."""

    @property
    def available_bytes(self) -> int | None:
        """What may still be allocated below this limit, never negative. None when the use is unknown."""
        if self.used_bytes is None:
            return None
        return max(0, self.limit_bytes - (self.used_bytes - self.reclaimable_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemoryFiles:
    """The names of one version's files and memory.stat keys; all of them count the groups below, too."""

    limits: tuple[str, ...]
    used: str
    reclaimable: tuple[str, ...]


_MEMORY_FILES = {
    1: _MemoryFiles(
        limits=("memory.limit_in_bytes",),
        used="memory.usage_in_bytes",
        reclaimable=("total_inactive_file", "total_active_file"),
    ),
    # Above memory.high the kernel does not kill: it slows the group to a crawl, which is no use to us either.
    2: _MemoryFiles(
        limits=("memory.max", "memory.high"),
        used="memory.current",
        reclaimable=("inactive_file", "active_file"),
    ),
}


_STAT_KEPT = re.compile(r"^(?:total_)?(?:in)?active_file .*$", re.MULTILINE)


def probe_limits(
    root: Where = Path("/"), *, total_bytes: int | None = None
) -> tuple[tuple[MemoryLimit, ...], tuple[str, ...]]:
    """Every memory limit on this process's groups and their ancestors, leaf first, and the warnings.

    A limit above the machine's memory, `total_bytes`, limits nothing and is left out. One that equals it
    stays: lxcfs shows a container its own limit as MemTotal.
    """
    files = Files(root)
    limits: list[MemoryLimit] = []
    for group in own_groups(files, "memory"):
        limits += _limits_of(files, group, UNLIMITED_BYTES - 1 if total_bytes is None else total_bytes)
    return tuple(limits), tuple(files.warnings)


def _limits_of(files: Files, group: Group, highest_bytes: int) -> list[MemoryLimit]:
    names = _MEMORY_FILES[group.version]
    limits = {}
    for name in names.limits:
        source = f"{group.directory}/{name}"
        limit_bytes = _limit(files, source)
        if limit_bytes is not None and limit_bytes <= highest_bytes:
            limits[source] = limit_bytes
    if not limits:
        return []
    used_bytes = files.integer(f"{group.directory}/{names.used}")
    if used_bytes is None or used_bytes < 0:
        used_bytes = None
        files.warnings.append(
            f"{group.directory}/{names.used}: unknown, so the limit is counted as if nothing was used"
        )
    reclaimable_bytes = min(_reclaimable(files, group.directory, names.reclaimable), used_bytes or 0)
    return [
        MemoryLimit(source=source, limit_bytes=limit_bytes, used_bytes=used_bytes, reclaimable_bytes=reclaimable_bytes)
        for source, limit_bytes in limits.items()
    ]


def _limit(files: Files, path: str) -> int | None:
    """The limit in bytes; None for `max`, for version 1's unlimited, and for no file or a strange one."""
    text = files.text(path)
    if text is None or text.strip() == "max":
        return None
    value = to_integer(text.strip())
    if value is None or value < 0:
        files.warnings.append(f"{path}: not a limit: {excerpt(text)}")
        return None
    return None if value >= UNLIMITED_BYTES else value


def _reclaimable(files: Files, directory: str, names: tuple[str, ...]) -> int:
    path = f"{directory}/memory.stat"
    stat = {}
    for line in (files.text(path, _STAT_KEPT) or "").splitlines():
        name, _, number = line.partition(" ")
        stat[name] = to_integer(number)
    known = [value for name in names if (value := stat.get(name)) is not None and value >= 0]
    if len(known) < len(names):
        files.warnings.append(f"{path}: lacks {' or '.join(names)}, so cache is counted as used")
    return sum(known)


def probe_cpu_quota(root: Where = Path("/")) -> tuple[float | None, tuple[str, ...]]:
    """The processor time this process may use, in cores, by its tightest group, and the warnings.

    cpu.max (version 2) or cpu.cfs_quota_us and cpu.cfs_period_us (version 1): quota per period, both in
    microseconds. None when no group limits it.
    """
    files = Files(root)
    quotas = [quota for group in own_groups(files, "cpu") if (quota := _quota_cores(files, group)) is not None]
    return min(quotas, default=None), tuple(files.warnings)


def _quota_cores(files: Files, group: Group) -> float | None:
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if group.version == 1 else ("cpu.max",)
    words: list[str] = []
    for name in names:
        text = files.text(f"{group.directory}/{name}")
        if text is None:
            return None
        words += text.split()
    if words[:1] in (["max"], ["-1"]):
        return None
    match [to_integer(word) for word in words]:
        case [int(quota), int(period)] if quota > 0 and period > 0:
            return quota / period
    files.warnings.append(f"{group.directory}: {' and '.join(names)} not understood: {excerpt(' '.join(words))}")
    return None
