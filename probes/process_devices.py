"""What one process holds on graphics processors, and the most that its control group ever held.

NVML, the drivers' fdinfo and Windows' counters were made from documentation and public samples; none was seen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probes._files import excerpt, to_integer
from probes._groups import own_groups
from probes.accelerator import has_nvidia_driver
from probes.machine import Files, Machine, Where, machine_at

if TYPE_CHECKING:
    from probes.nvidia import OpenNvml


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """What a process holds on one graphics processor. None is unknown, and `ProcessDevices.reasons` says why."""

    device: str
    """Where it sits, as `0000:01:00.0`; on Windows the adapter's identifier."""
    own_bytes: int | None
    """In the processor's own memory."""
    shared_bytes: int | None
    """In the machine's memory, for the processor: all of it where it has none of its own."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessDevices:
    """What a process holds on all of them."""

    devices: tuple[DeviceMemory, ...]
    reasons: tuple[str, ...]
    """Why something is unknown, one line each."""


def probe_process_devices(pid: int, root: Where = Path("/")) -> ProcessDevices:
    """What process `pid` holds on each graphics processor: NVML, fdinfo (amdgpu, xe, i915), or Windows' counters.

    Never raises. On a Mac nothing tells it from outside: the engine's own figures have to do.
    """
    machine = machine_at(root)
    if machine.system == "Windows" or not has_nvidia_driver(machine):
        return process_devices(machine, pid, None)
    from probes.nvidia import OpenNvml

    try:
        nvml = OpenNvml(machine)
    except Exception as error:  # NVML's own, of a module that may not be there
        return process_devices(machine, pid, None, f"nvml: {str(error) or type(error).__name__}")
    try:
        return process_devices(machine, pid, nvml)
    finally:
        nvml.close()


def process_devices(machine: Machine, pid: int, nvml: OpenNvml | None, why_no_nvml: str = "") -> ProcessDevices:
    """The same with an NVML that is open, or with why it is not."""
    reasons = [why_no_nvml] if why_no_nvml else []
    found: list[DeviceMemory] = []
    try:
        if machine.system == "Linux":
            found += _from_fdinfo(machine, pid)
        if machine.system == "Windows":
            found += _from_counters(machine, pid, reasons)
        elif nvml is not None:
            found += _from_nvml(nvml, pid, reasons)
        if machine.system == "Darwin":
            reasons.append("graphics memory of another process is not told on macOS")
    except Exception as error:  # a probe never raises, whatever a driver answers
        reasons.append(f"graphics memory: {error!r}")
    return ProcessDevices(devices=tuple(found), reasons=tuple(reasons))


def _from_fdinfo(machine: Machine, pid: int) -> Iterator[DeviceMemory]:
    from probes.drm import read_fdinfo

    sums: dict[str, list[int]] = {}
    for client in read_fdinfo(machine.path(f"/proc/{pid}"), set()):
        regions = client["regions"]
        sizes = sums.setdefault(client["pci"], [0, 0])
        sizes[0] += sum(regions.get(f"{region}_bytes", 0) for region in ("vram", "local"))
        sizes[1] += sum(regions.get(f"{region}_bytes", 0) for region in ("gtt", "system", "stolen"))
    for pci, (own, shared) in sums.items():
        yield DeviceMemory(device=pci, own_bytes=own, shared_bytes=shared, source=f"/proc/{pid}/fdinfo")


def _from_nvml(nvml: OpenNvml, pid: int, reasons: list[str]) -> Iterator[DeviceMemory]:
    found = nvml.process_bytes(pid)
    if not found:
        reasons.append("nvml: lists no such process; inside a container it lists them by the host's numbers")
    for pci, told in found.items():
        size = told if isinstance(told, int) else None
        if isinstance(told, str):
            reasons.append(told)
        yield DeviceMemory(device=pci, own_bytes=size, shared_bytes=None, source="NVML running processes")


_COUNTERS = ("Dedicated Usage", "Shared Usage")


def _from_counters(machine: Machine, pid: int, reasons: list[str]) -> Iterator[DeviceMemory]:
    read = machine.clients.counters or read_counters
    values: dict[str, dict[str, int]] = {}
    for counter in _COUNTERS:
        try:
            answer = read(f"\\GPU Process Memory(pid_{pid}_*)\\{counter}")
        except OSError as error:
            reasons.append(f"{counter}: {error}")
            continue
        for instance, size in answer.items():
            values.setdefault(instance.removeprefix(f"pid_{pid}_"), {})[counter] = size
    for adapter, sizes in values.items():
        own, shared = (sizes.get(counter) for counter in _COUNTERS)
        yield DeviceMemory(device=adapter, own_bytes=own, shared_bytes=shared, source="GPU Process Memory counters")


def probe_group_peak(pid: int, root: Where = Path("/")) -> tuple[int | None, tuple[str, ...]]:
    """The most that the control group of process `pid` held so far, page cache included, and why it is unknown.

    All processes of the group count, so that it is this one's alone only in a group of its own (a container, a
    unit of systemd). memory.peak came with Linux 5.19.
    """
    files = Files(root)
    for group in own_groups(files, "memory", process=str(pid)):
        path = f"{group.directory}/{'memory.max_usage_in_bytes' if group.version == 1 else 'memory.peak'}"
        text = files.text(path)
        if text is not None:
            value = to_integer(text.strip())
            if value is not None and value >= 0:
                return value, tuple(files.warnings)
            files.warnings.append(f"{path}: not a size: {excerpt(text)}")
    return None, (*files.warnings, "no control group of the process tells its peak")


def read_counters(path: str) -> Mapping[str, int]:
    """The instances of a counter of Windows and their values. Raises OSError where they cannot be had."""
    if sys.platform == "win32":
        import ctypes
        from ctypes import wintypes

        class Value(ctypes.Structure):
            _fields_ = [("status", wintypes.DWORD), ("large", ctypes.c_longlong)]

        class Item(ctypes.Structure):
            _fields_ = [("name", wintypes.LPWSTR), ("value", Value)]

        pdh: Any = ctypes.windll.pdh
        query, counter = wintypes.HANDLE(), wintypes.HANDLE()
        size, count = wintypes.DWORD(0), wintypes.DWORD(0)
        _check(pdh.PdhOpenQueryW(None, None, ctypes.byref(query)))
        try:
            _check(pdh.PdhAddEnglishCounterW(query, path, None, ctypes.byref(counter)))
            _check(pdh.PdhCollectQueryData(query))
            arguments = (counter, _LARGE, ctypes.byref(size), ctypes.byref(count))
            pdh.PdhGetFormattedCounterArrayW(*arguments, None)  # says how much room it needs
            room = ctypes.create_string_buffer(max(1, size.value))
            _check(pdh.PdhGetFormattedCounterArrayW(*arguments, room))
            items = ctypes.cast(room, ctypes.POINTER(Item))
            return {items[index].name: items[index].value.large for index in range(count.value)}
        finally:
            pdh.PdhCloseQuery(query)
    raise OSError("only Windows has such counters")


_LARGE = 0x00000400
"""PDH_FMT_LARGE: whole numbers of 64 bits."""


def _check(status: int) -> None:
    if status != 0:
        raise OSError(f"PDH says {status & 0xFFFFFFFF:#010x}")
