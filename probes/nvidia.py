"""NVIDIA's processors, by NVML. Made from its documentation and from public reports; no such card was seen.

Asking takes two steps: what NVML answers is written down as it is, errors included (`read_nvml`), and then
understood (`probe_nvidia`), so that a report of another machine is understood by the same code.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from probes._files import sizes_in_bytes
from probes.accelerator import has_nvidia_driver
from probes.gpu import Gpu, Holder, merged_holders
from probes.machine import Files, Machine, Where, machine_at
from probes.programs import is_desktop
from probes.report import Json

_SHARES = re.compile(r"GB10|GB110|Orin|Xavier|Thor|\(nvgpu\)|Tegra")
"""Names of processors that live in the machine's memory."""
_NO_SLICE = 0xFFFFFFFF
_NOT_AVAILABLE = (1 << 64) - 1
"""NVML_VALUE_NOT_AVAILABLE, which pynvml turns into None for most structures and not for all."""
WSL_MARGIN_BYTES = 2 << 30
"""On WSL2 loading failed with 2 GiB still free by NVML's word (microsoft/WSL#41176), so that they do not count."""


def probe_nvidia(
    root: Where = Path("/"), *, is_wsl: bool = False, is_contained: bool = False
) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """The processors and MIG slices that NVML lists, and the warnings. Never raises.

    `is_contained` says that this is a container: NVML numbers processes as the host does, so that here their
    names would be those of others.
    """
    machine = machine_at(root)
    files = Files(machine)
    try:
        if not has_nvidia_driver(machine):
            return (), ()
        answer = files.answer("nvml", lambda: read_nvml(machine))
        gpus = tuple(_gpus(answer, files, is_wsl)) if isinstance(answer, dict) else ()
    except Exception as error:  # a probe never raises, whatever a driver answers
        return (), (*files.warnings, f"nvml: answer not understood: {error!r}")
    if not gpus:
        gpus = tuple(_jetson(files))
    version = answer.get("driver") if isinstance(answer, dict) else None
    if isinstance(version, str) and version:
        gpus = tuple(replace(gpu, driver=f"NVIDIA {version}") for gpu in gpus)
    if is_contained:
        gpus = tuple(replace(gpu, holders=_nameless(gpu.holders)) for gpu in gpus)
    return gpus, tuple(files.warnings)


def _nameless(holders: tuple[Holder, ...]) -> tuple[Holder, ...]:
    return merged_holders([Holder(name=None, size_bytes=holder.size_bytes) for holder in holders])


# What NVML answers


def read_nvml(machine: Machine) -> Json:
    """Everything that is asked of NVML, as JSON. Raises what NVML raises when it cannot start."""
    nvml = _client(machine)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if machine.system == "Windows" and _reason(error) == "LibraryNotFound":
            return {"devices": []}  # there is no other sign of whether NVIDIA's driver is installed
        raise
    try:
        return {
            "driver": _try(nvml, nvml.nvmlSystemGetDriverVersion),
            "devices": [_device(nvml, machine, index) for index in range(nvml.nvmlDeviceGetCount())],
        }
    finally:
        _shut_down(nvml)


def _shut_down(nvml: Any) -> None:
    """Let NVML go. Whatever it answers, what it told before is good."""
    with contextlib.suppress(Exception):
        nvml.nvmlShutdown()


def _client(machine: Machine) -> Any:
    if machine.clients.nvml is not None:
        return machine.clients.nvml
    import pynvml  # at the moment of use: without a driver it costs nothing

    return pynvml


def _device(nvml: Any, machine: Machine, index: int) -> Json:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:  # a card that has fallen off the bus
        return {"error": _reason(error)}
    return {
        "name": _try(nvml, nvml.nvmlDeviceGetName, handle),
        "pci": _bus_id(_try(nvml, nvml.nvmlDeviceGetPciInfo, handle)),
        "memory": _memory(nvml, handle),
        "mig": _first(_try(nvml, nvml.nvmlDeviceGetMigMode, handle)),
        "slices": list(_slices(nvml, handle)),
        "processes": _processes(nvml, machine, handle),
    }


def _memory(nvml: Any, handle: Any) -> Json:
    """Version 2 tells what the driver reserves; some drivers answer only version 1 (nvitop#30)."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        version = 2
    except (nvml.NVMLError, AttributeError, TypeError):
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            return {"error": _reason(error)}
        version = 1
    names = ("total", "free", "used", *(("reserved",) if version == 2 else ()))
    return {"version": version, **{f"{name}_bytes": int(getattr(memory, name)) for name in names}}


def _slices(nvml: Any, handle: Any) -> Iterator[Json]:
    count = _try(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    for index in range(count if isinstance(count, int) else 0):
        try:
            child = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError:
            continue  # no slice has this number
        yield {
            "name": _try(nvml, nvml.nvmlDeviceGetName, child),
            "instance": _try(nvml, nvml.nvmlDeviceGetGpuInstanceId, child),
            "memory": _memory(nvml, child),
        }


def _processes(nvml: Any, machine: Machine, handle: Any) -> Json:
    found: dict[int, dict[str, Json]] = {}
    for process in _running(nvml, handle):
        size, instance = _used(process), getattr(process, "gpuInstanceId", None)
        entry = found.setdefault(
            process.pid,
            {
                "process": _program(machine, process.pid),
                "used_bytes": size,
                "instance": None if instance in (None, _NO_SLICE) else int(instance),
            },
        )
        if size is not None and size > (entry["used_bytes"] or 0):
            entry["used_bytes"] = size
    return list(found.values())


def _used(process: Any) -> int | None:
    """What a process in a list holds as the driver says it; None where it does not."""
    size = getattr(process, "usedGpuMemory", None)
    return None if size is None or int(size) == _NOT_AVAILABLE else int(size)


def _can_be(size: int, total: int | None) -> bool:
    """Whether a process can hold so much of a card; a card whose own size is not known sets no limit."""
    return size >= 0 and (not total or size <= total)


def _running(nvml: Any, handle: Any) -> Iterator[Any]:
    """The processes on a card; one that computes and draws is listed twice, with all that it holds.

    Drivers before 510 know version 2 alone, and pynvml says so with an error that is none of NVML's. A Jetson
    lists none.
    """
    for kind in ("Compute", "Graphics"):
        for version in ("", "_v2"):
            try:
                yield from getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses{version}")(handle)
            except Exception:  # not listed: no figure of the card depends on it
                continue
            break


def _program(machine: Machine, pid: int) -> str | None:
    """A process's name. The path that NVML itself tells is a person's own."""
    try:
        return machine.path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip() or None
    except (OSError, ValueError):
        return None


def _try(nvml: Any, ask: Callable[..., Any], *arguments: Any) -> Json:
    """An answer, or the error in its place: one question that a driver does not know must not cost the others."""
    try:
        answer = ask(*arguments)
    except nvml.NVMLError as error:
        return {"error": _reason(error)}
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer


def _reason(error: Exception) -> str:
    """`NotSupported` for NVMLError_NotSupported: drivers translate the sentences."""
    name = type(error).__name__
    return name.removeprefix("NVMLError_") if name.startswith("NVMLError_") else str(error) or name


def _bus_id(info: Any) -> Json:
    identifier = info if isinstance(info, dict) else info.busId
    return identifier.decode("ascii", "replace") if isinstance(identifier, bytes) else identifier


def _first(modes: Any) -> Json:
    """The present one of two modes; the other one comes with the next reset."""
    return modes if isinstance(modes, dict) else modes[0]


class OpenNvml:
    """NVML opened once and asked often: for a run that looks at the same cards again and again."""

    def __init__(self, machine: Machine) -> None:
        """Raises what NVML raises when it cannot start."""
        self._nvml = nvml = _client(machine)
        nvml.nvmlInit()
        self._cards: dict[str, Any] = {}
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = _try(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
            if _error(handle) is None:  # else one that has fallen off the bus
                self._cards[_pci(_bus_id(_try(nvml, nvml.nvmlDeviceGetPciInfo, handle))) or str(index)] = handle

    def process_bytes(self, pid: int) -> dict[str, int | str]:
        """What one process holds of each card, by where the card sits, or why that is not known.

        One that computes and draws is listed twice: the larger figure has all of it.
        """
        found: dict[str, int | str] = {}
        for pci, card in self._cards.items():
            listed = [_used(process) for process in _running(self._nvml, card) if process.pid == pid]
            if listed:
                found[pci] = self._largest([size for size in listed if size is not None], card, pci)
        return found

    def _largest(self, told: list[int], card: Any, pci: str) -> int | str:
        if not told:
            return f"nvml: the driver does not say what a process holds of {pci} (WSL2, Windows)"
        total, _, _ = _figures(_memory(self._nvml, card))
        sound = [size for size in told if _can_be(size, total)]
        if sound:
            return max(sound)
        return f"nvml: the driver says that a process holds {told[0]:,} bytes of {pci}, which cannot be"

    def free_bytes(self) -> dict[str, int | None]:
        """What each card has free; None where it does not say, or is divided (MIG): a program gets one slice."""
        return {pci: None if self._is_divided(card) else self._free(card) for pci, card in self._cards.items()}

    def _is_divided(self, card: Any) -> bool:
        return bool(_first(_try(self._nvml, self._nvml.nvmlDeviceGetMigMode, card)) == 1)

    def _free(self, card: Any) -> int | None:
        _, free, _ = _figures(_memory(self._nvml, card))
        return free

    def close(self) -> None:
        """Let NVML go. Never raises."""
        _shut_down(self._nvml)


# What it means


def _gpus(answer: dict[str, Json], files: Files, is_wsl: bool) -> Iterator[Gpu]:
    devices = answer.get("devices")
    for index, device in enumerate(devices if isinstance(devices, list) else []):
        if not isinstance(device, dict) or _error(device.get("name")) or "error" in device:
            reason = _error(device.get("name")) or device.get("error") if isinstance(device, dict) else "no answer"
            files.warnings.append(f"NVML lists a processor {index} and cannot tell of it: {reason}.")
            continue
        yield from _gpu(device, files, is_wsl)


def _gpu(device: dict[str, Json], files: Files, is_wsl: bool) -> Iterator[Gpu]:
    name, pci = str(device.get("name")), _pci(device.get("pci"))
    memory = device.get("memory")
    total, free, reason = _figures(memory)
    holders = _holders(device.get("processes"), total)
    slices = device.get("slices")
    if device.get("mig") == 1 and not slices:
        files.warnings.append(
            f"{name} is divided (MIG) and has no slice that can be used: nvidia-smi mig -cgi makes some."
        )
        return
    if device.get("mig") == 1 and isinstance(slices, list):
        yield from (_slice(name, pci, entry, device, index) for index, entry in enumerate(slices))
        return
    if _SHARES.search(name) and (not total or reason == "NotSupported"):
        yield Gpu(
            vendor="nvidia",
            name=name,
            pci=pci,
            shares_memory=True,
            holders=holders,
            sources=(f"shares_memory: NVML name {name}, memory {reason or total}",),
        )
        return
    warnings = []
    if not total:
        warnings.append(f"How much memory {name} has is not known: NVML says {reason or 'nothing'}.")
    yield Gpu(
        vendor="nvidia",
        name=name,
        pci=pci,
        shares_memory=bool(_SHARES.search(name)),
        total_bytes=total or None,
        free_bytes=None if free is None else max(0, free - (WSL_MARGIN_BYTES if is_wsl else 0)),
        confidence="low" if is_wsl else "read",
        holders=holders,
        sources=_sources(memory, is_wsl) if total else (),
        warnings=tuple(warnings),
    )


def _slice(name: str, pci: str | None, entry: Json, device: dict[str, Json], index: int) -> Gpu:
    """One MIG slice: its memory is its own; the processes are listed with the whole card."""
    entry = entry if isinstance(entry, dict) else {}
    total, free, reason = _figures(entry.get("memory"))
    processes = device.get("processes")
    own = [
        process
        for process in (processes if isinstance(processes, list) else [])
        if isinstance(process, dict) and process.get("instance") == entry.get("instance")
    ]
    label = entry.get("name") if isinstance(entry.get("name"), str) else None
    profile = re.search(r"\d+g\.\d+gb\S*", label or "")
    return Gpu(
        vendor="nvidia",
        name=label if label and profile else f"{name} MIG {index}",
        pci=pci,
        total_bytes=total or None,
        free_bytes=free,
        slice=profile[0] if profile else str(index),
        holders=_holders(own, total),
        sources=_sources(entry.get("memory"), False) if total else (),
        warnings=() if total else (f"How much memory a slice of {name} has is not known: {reason}.",),
    )


def _figures(memory: Json) -> tuple[int | None, int | None, str | None]:
    """Total and free bytes, or why they are unknown. `free` means the same in both versions; `used` does not."""
    if not isinstance(memory, dict):
        return None, None, "no answer"
    total, free = memory.get("total_bytes"), memory.get("free_bytes")
    if isinstance(total, int) and isinstance(free, int) and 0 <= free <= total:
        return total, free, None
    return None, None, _error(memory) or "an answer that cannot be"


def _sources(memory: Json, is_wsl: bool) -> tuple[str, ...]:
    how = f"nvmlDeviceGetMemoryInfo, version {memory['version']}"
    margin = ", less 2 GiB that WSL2 does not hand out" if is_wsl else ""
    return (f"total_bytes: {how}", f"free_bytes: {how}{margin}")


def _holders(processes: Json, total: int | None) -> tuple[Holder, ...]:
    found = []
    for process in processes if isinstance(processes, list) else []:
        if isinstance(process, dict):
            name, used = process.get("process"), process.get("used_bytes")
            name = name if isinstance(name, str) else None
            size = used if isinstance(used, int) and _can_be(used, total) else None
            found.append(Holder(name=name, size_bytes=size, is_desktop=bool(name) and is_desktop(name or "")))
    return merged_holders(found)


def _error(answer: Json) -> str | None:
    return str(answer["error"]) if isinstance(answer, dict) and "error" in answer else None


def _pci(text: Json) -> str | None:
    """NVML's `00000000:01:00.0` as Linux writes it."""
    match = re.fullmatch(r"[0-9a-f]*([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])", str(text).lower())
    return match[1] if match else None


def _jetson(files: Files) -> Iterator[Gpu]:
    """A Jetson whose NVML tells nothing (before JetPack 6): the board says what it is."""
    board = (files.text("/proc/device-tree/model") or "").strip("\0 \n")
    if _SHARES.search(board) and sizes_in_bytes(files.text("/proc/meminfo") or ""):
        yield Gpu(
            vendor="nvidia",
            name=board,
            shares_memory=True,
            sources=("shares_memory: /proc/device-tree/model",),
        )
