"""The host's memory: what exists, and what a new process can get now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from probes._files import Files, sizes_in_bytes
from probes.cgroup import MemoryLimit, probe_limits

__all__ = ["HostMemory", "MemoryLimit", "probe_host"]

_MEMINFO = "/proc/meminfo"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Two numbers and not one: what exists and what can be had. None is unknown, and `warnings` says why."""

    total_bytes: int | None
    """Memory that exists, as the kernel counts it (MemTotal: without what firmware and kernel keep)."""
    available_bytes: int | None
    """What can be allocated now without swapping, page cache given up included (MemAvailable)."""
    usable_bytes: int | None
    """`available_bytes`, lowered to the room below the tightest of `limits`. This is what a plan may use."""
    swap_total_bytes: int | None
    """Swap that exists; 0 is none. Never part of a plan: only reported."""
    swap_free_bytes: int | None
    """Swap that is free."""
    limits: tuple[MemoryLimit, ...]
    """The control group limits on this process, leaf first; empty when there are none."""
    sources: tuple[str, ...]
    """Where each figure came from, one line each."""
    warnings: tuple[str, ...]
    """What could not be read or believed, one line each."""


def probe_host(root: Path = Path("/")) -> HostMemory:
    """The memory of the machine at `root`. Never raises: what fails is unknown, with a warning.

    Linux: /proc/meminfo and the control groups. Elsewhere, where `/` has no /proc/meminfo: psutil.
    """
    files = Files(root)
    text = files.text(_MEMINFO)
    if text is not None:
        return _from_meminfo(text, root)
    if files.warnings or root != Path("/"):
        files.warnings = files.warnings or [f"{_MEMINFO}: not found"]
        return _with_usable(_unknown(files.warnings))
    return _from_psutil()


def _from_meminfo(text: str, root: Path) -> HostMemory:
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
    limits, limit_warnings = probe_limits(root, total_bytes=total_bytes)
    return _with_usable(
        HostMemory(
            total_bytes=total_bytes,
            available_bytes=available_bytes,
            usable_bytes=None,
            swap_total_bytes=figures["swap_total_bytes"],
            swap_free_bytes=figures["swap_free_bytes"],
            limits=limits,
            sources=tuple(f"{field}: {_MEMINFO} {names[field]}" for field, size in figures.items() if size is not None),
            warnings=(*warnings, *limit_warnings),
        )
    )


def _from_psutil() -> HostMemory:
    try:
        import psutil

        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    except Exception as error:  # a probe never raises, whatever the platform does
        return _unknown([f"psutil: {error!r}"])
    return _with_usable(
        HostMemory(
            total_bytes=memory.total,
            available_bytes=memory.available,
            usable_bytes=None,
            swap_total_bytes=swap.total,
            swap_free_bytes=swap.free,
            limits=(),
            sources=(
                "total_bytes: psutil.virtual_memory().total",
                "available_bytes: psutil.virtual_memory().available",
                "swap_total_bytes: psutil.swap_memory().total",
                "swap_free_bytes: psutil.swap_memory().free",
            ),
            warnings=(),
        )
    )


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
        rooms.insert(0, (memory.available_bytes, "available_bytes, which no control group limit lowers"))
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
