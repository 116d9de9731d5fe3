"""The host's memory: what exists, and what a new process can get now."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probes._files import sizes_in_bytes, to_integer
from probes._groups import MOUNTS_KEPT
from probes.cgroup import MemoryLimit, probe_limits
from probes.machine import Files, Machine, Where, machine_at
from probes.report import Json

__all__ = ["ARC_SHARE", "HostMemory", "MemoryLimit", "probe_host"]

_MEMINFO = "/proc/meminfo"
_ARCSTATS = "/proc/spl/kstat/zfs/arcstats"
_ARCSTATS_KEPT = re.compile(r"^(?:size|c_min|c_max) .*$", re.MULTILINE)
_MOUNTINFO = "/proc/self/mountinfo"

ARC_SHARE = 0.8
"""Of ZFS's cache beyond its minimum, how much counts as usable: it shrinks only while a program already waits, so
that a claim on all of it can still end in an out-of-memory kill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Two numbers and not one: what exists and what can be had. None is unknown, and `warnings` says why."""

    total_bytes: int | None
    """Memory that exists, as the kernel counts it (MemTotal: without what firmware and kernel keep)."""
    available_bytes: int | None
    """What can be allocated now without swapping, page cache given up included (MemAvailable)."""
    usable_bytes: int | None
    """`available_bytes` and a part of `arc_bytes`, lowered to the room below the tightest of `limits`. This is
    what a plan may use."""
    swap_total_bytes: int | None
    """Swap that exists; 0 is none. Never part of a plan: only reported."""
    swap_free_bytes: int | None
    """Swap that is free."""
    arc_bytes: int = 0
    """ZFS's cache beyond its minimum, which the kernel does not count as available (openzfs#10255)."""
    arc_max_bytes: int | None = None
    """How large ZFS lets its cache grow; None without ZFS."""
    hugepages_bytes: int = 0
    """Reserved for huge pages: part of the total, never available, and of no use to llama.cpp."""
    hugepages_free_bytes: int = 0
    """The part of them that nobody uses."""
    limits: tuple[MemoryLimit, ...]
    """The control group limits on this process, leaf first; empty when there are none."""
    sources: tuple[str, ...]
    """Where each figure came from, one line each."""
    warnings: tuple[str, ...]
    """What could not be read or believed, one line each."""


def probe_host(root: Where = Path("/")) -> HostMemory:
    """The memory of the machine at `root`. Never raises: what fails is unknown, with a warning.

    Linux: /proc/meminfo, ZFS and the control groups. Windows: GlobalMemoryStatusEx. Elsewhere: psutil.
    """
    machine = machine_at(root)
    files = Files(machine)
    try:
        text = files.text(_MEMINFO)
        if text is not None:
            return _from_meminfo(text, machine)
        if files.warnings or machine.system == "Linux":
            return _unknown(files.warnings or [f"{_MEMINFO}: not found"])
        return _from_windows(files) if machine.system == "Windows" else _from_psutil(files)
    except Exception as error:  # a probe never raises, whatever the platform does
        return _unknown([f"memory: {error!r}"])


def _from_meminfo(text: str, machine: Machine) -> HostMemory:
    sizes = sizes_in_bytes(text)
    names = {
        "total_bytes": "MemTotal",
        "available_bytes": "MemAvailable",
        "swap_total_bytes": "SwapTotal",
        "swap_free_bytes": "SwapFree",
    }
    figures = {field: sizes.get(name) for field, name in names.items()}
    warnings = [f"{_MEMINFO}: {names[field]} not found" for field, size in figures.items() if size is None]
    total_bytes, available_bytes = figures["total_bytes"], figures["available_bytes"]
    if total_bytes == 0:
        # lxcfs on early cgroup v2 (lxcfs#389); MemAvailable is computed from the same wrong total.
        warnings.append(f"{_MEMINFO}: MemTotal is 0, which cannot be: MemTotal and MemAvailable are ignored")
        total_bytes = available_bytes = None
    elif total_bytes is not None and available_bytes is not None and available_bytes > total_bytes:
        warnings.append(f"{_MEMINFO}: MemAvailable {available_bytes} is above MemTotal, which is taken instead")
        available_bytes = total_bytes
    figures |= {"total_bytes": total_bytes, "available_bytes": available_bytes}
    limits, limit_warnings = probe_limits(machine, total_bytes=total_bytes)
    sources = [f"{field}: {_MEMINFO} {names[field]}" for field, size in figures.items() if size is not None]
    memory = HostMemory(
        total_bytes=total_bytes,
        available_bytes=available_bytes,
        usable_bytes=None,
        swap_total_bytes=figures["swap_total_bytes"],
        swap_free_bytes=figures["swap_free_bytes"],
        limits=limits,
        sources=tuple(sources),
        warnings=(*warnings, *limit_warnings),
    )
    return _with_usable(_with_hugepages(_with_arc(memory, machine), text, sizes))


def _with_arc(memory: HostMemory, machine: Machine) -> HostMemory:
    """`memory` with what ZFS's cache would give up; nothing of it where lxcfs shows a container's own memory."""
    files = Files(machine)
    text = files.text(_ARCSTATS, _ARCSTATS_KEPT)
    if text is None:
        return replace(memory, warnings=(*memory.warnings, *files.warnings))
    rows = {words[0]: to_integer(words[2]) for words in map(str.split, text.splitlines()) if len(words) == 3}
    size, least, most = rows.get("size"), rows.get("c_min"), rows.get("c_max")
    if size is None or least is None or size < 0 or least < 0:
        return replace(memory, warnings=(*memory.warnings, f"{_ARCSTATS}: size or c_min not found"))
    if " /proc/meminfo " in (files.text(_MOUNTINFO, MOUNTS_KEPT) or ""):
        why = f"{_ARCSTATS}: the host's cache, which this container's figures know nothing of, is left out"
        return replace(memory, warnings=(*memory.warnings, why), arc_max_bytes=most)
    return replace(
        memory,
        arc_bytes=max(0, size - least),
        arc_max_bytes=most,
        sources=(*memory.sources, f"arc_bytes: {_ARCSTATS} size {size} - c_min {least}"),
    )


def _with_hugepages(memory: HostMemory, text: str, sizes: Mapping[str, int]) -> HostMemory:
    """`memory` with what is reserved for huge pages. Their number has no unit in meminfo, so that it is no size."""
    page = sizes.get("Hugepagesize", 0)
    counts = {name: int(count) for name, count in re.findall(r"^(HugePages_\w+):\s+(\d{1,15})\s*$", text, re.MULTILINE)}
    reserved = counts.get("HugePages_Total", 0) * page
    if not reserved:
        return memory
    return replace(
        memory,
        hugepages_bytes=reserved,
        hugepages_free_bytes=min(reserved, counts.get("HugePages_Free", 0) * page),
        sources=(*memory.sources, f"hugepages_bytes: {_MEMINFO} HugePages_Total x Hugepagesize"),
    )


def _from_windows(files: Files) -> HostMemory:
    """What exists and is free, and never more than what may still be promised (the commit limit)."""
    from probes.windows import windows_memory

    found = windows_memory(files)
    if found is None:
        return _from_psutil(files)
    total, free, commit = found["total_bytes"], found["available_bytes"], found["commit_available_bytes"]
    return HostMemory(
        total_bytes=total,
        available_bytes=free,
        usable_bytes=min(free, commit),
        swap_total_bytes=max(0, found["commit_total_bytes"] - total),
        swap_free_bytes=max(0, commit - free),
        limits=(),
        sources=(
            "total_bytes: GlobalMemoryStatusEx ullTotalPhys",
            "available_bytes: GlobalMemoryStatusEx ullAvailPhys",
            "usable_bytes: "
            + ("ullAvailPhys" if free <= commit else "ullAvailPageFile: less may be promised than is free"),
        ),
        warnings=tuple(files.warnings),
    )


def _from_psutil(files: Files) -> HostMemory:
    psutil = files.machine.clients.psutil
    answer = files.answer("psutil memory", lambda: _psutil_answer(psutil))
    figures = answer if isinstance(answer, dict) else {}
    sizes = {name: size if isinstance(size, int) and size >= 0 else None for name, size in figures.items()}
    asked = {
        "total_bytes": ("total_bytes", "psutil.virtual_memory().total"),
        "available_bytes": ("available_bytes", "psutil.virtual_memory().available"),
        "swap_total_bytes": ("swap_total_bytes", "psutil.swap_memory().total"),
        "swap_free_bytes": ("swap_free_bytes", "psutil.swap_memory().free"),
    }
    found = {field: sizes.get(name) for field, (name, _source) in asked.items()}
    return _with_usable(
        HostMemory(
            total_bytes=found["total_bytes"],
            available_bytes=found["available_bytes"],
            usable_bytes=None,
            swap_total_bytes=found["swap_total_bytes"],
            swap_free_bytes=found["swap_free_bytes"],
            limits=(),
            sources=tuple(f"{field}: {asked[field][1]}" for field, size in found.items() if size is not None),
            warnings=tuple(files.warnings),
        )
    )


def _psutil_answer(psutil: Any) -> Json:
    if psutil is None:
        import psutil
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "total_bytes": memory.total,
        "available_bytes": memory.available,
        "swap_total_bytes": swap.total,
        "swap_free_bytes": swap.free,
    }


def _unknown(warnings: Sequence[str]) -> HostMemory:
    return HostMemory(
        total_bytes=None,
        available_bytes=None,
        usable_bytes=None,
        swap_total_bytes=None,
        swap_free_bytes=None,
        limits=(),
        sources=(),
        warnings=tuple(warnings),
    )


def _with_usable(memory: HostMemory) -> HostMemory:
    """`memory` with its `usable_bytes`: the smallest room that is known."""
    rooms = [(_room(limit), _explain(limit)) for limit in memory.limits]
    if memory.available_bytes is not None:
        arc = int(memory.arc_bytes * ARC_SHARE)
        room = memory.available_bytes + arc
        if memory.total_bytes is not None:
            room = min(room, memory.total_bytes)
        reason = "available_bytes" + (f" + {ARC_SHARE:.0%} of arc_bytes" if arc else "")
        rooms.insert(0, (room, f"{reason}, which no control group limit lowers"))
    if not rooms:
        return memory
    usable_bytes, reason = min(rooms, key=lambda room: room[0])
    warnings = memory.warnings
    if memory.available_bytes is None:
        warnings += ("usable_bytes: the control group's room alone, because what the host has available is unknown",)
    return replace(
        memory,
        usable_bytes=usable_bytes,
        sources=(*memory.sources, f"usable_bytes: {reason}"),
        warnings=warnings,
    )


def _room(limit: MemoryLimit) -> int:
    """An unknown use leaves at most the whole limit; `probe_limits` has warned."""
    return limit.limit_bytes if limit.available_bytes is None else limit.available_bytes


def _explain(limit: MemoryLimit) -> str:
    if limit.used_bytes is None:
        return f"{limit.source} {limit.limit_bytes}, use unknown"
    return f"{limit.source} {limit.limit_bytes} - {limit.used_bytes} used + {limit.reclaimable_bytes} page cache"
