"""What an Apple processor's graphics may take of the machine's memory. Made from public samples; none was seen.

The truth is Metal's recommended working set, which follows the setting `iogpu.wired_limit_mb` both ways
(AlexsJones/llmfit#754). Where Metal cannot be asked, a rule stands in that public logs bear out as a lower bound.
"""

from __future__ import annotations

import sys
from pathlib import Path

from probes._files import to_integer
from probes.gpu import Gpu
from probes.machine import Files, Machine, Where
from probes.report import Json

_GIB = 1 << 30
_MIB = 1 << 20
_SYSCTL = ("sysctl", "hw.memsize", "hw.optional.arm64", "machdep.cpu.brand_string", "iogpu", "debug.iogpu")
_VERSION = ("sw_vers", "-productVersion")


def working_set_rule(memory_bytes: int) -> int:
    """What Metal recommends by default, about: two thirds up to 32 GiB, three quarters above.

    From logs of 16 to 128 GB: 10922 MiB of 16 GB, 21845 of 32, 27648 of 36, 49152 of 64. Newer systems give more.
    """
    return memory_bytes * 2 // 3 if memory_bytes <= 32 * _GIB else memory_bytes * 3 // 4


def probe_apple(root: Where = Path("/")) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """The graphics of a Mac, and the warnings; none elsewhere. Never raises."""
    files = Files(root)
    if files.machine.system != "Darwin":
        return (), ()
    try:
        return _gpus(files), tuple(files.warnings)
    except Exception as error:  # a probe never raises, whatever the system answers
        return (), (*files.warnings, f"Metal: {error!r}")


def wired_limit(root: Where) -> int | None:
    """What iogpu.wired_limit_mb is set to, in bytes; None for the system's own choice, which is 0 there."""
    return _limit_bytes(_sysctl(Files(root)))


def _sysctl(files: Files) -> dict[str, str]:
    text = str(files.answer(" ".join(_SYSCTL), lambda: files.machine.clients.run(_SYSCTL)) or "")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _limit_bytes(values: dict[str, str]) -> int | None:
    mib = to_integer(values.get("iogpu.wired_limit_mb", values.get("debug.iogpu.wired_limit", "")))
    return mib * _MIB if mib is not None and mib > 0 else None


def _gpus(files: Files) -> tuple[Gpu, ...]:
    machine, values = files.machine, _sysctl(files)
    memory = to_integer(values.get("hw.memsize", "")) or None
    is_apple = values.get("hw.optional.arm64") == "1" or machine.architecture == "arm64"
    metal = files.answer("metal", machine.clients.metal or read_metal)
    metal = metal if isinstance(metal, dict) else {}
    if not metal and not is_apple:
        return ()
    total, source = _working_set(files, metal, memory, _limit_bytes(values))
    name = metal.get("name") or values.get("machdep.cpu.brand_string") or "Apple graphics"
    used = metal.get("current_allocated_bytes")
    largest = metal.get("max_buffer_bytes")
    is_shared = is_apple if metal.get("has_unified_memory") is None else bool(metal["has_unified_memory"])
    free = None if total is None else max(0, total - used) if isinstance(used, int) else total
    return (
        Gpu(
            vendor="apple",
            name=str(name),
            shares_memory=is_shared,
            total_bytes=None if is_shared else total,
            free_bytes=None if is_shared else free,
            shared_total_bytes=total if is_shared else None,
            shared_free_bytes=free if is_shared else None,
            max_allocation_bytes=largest if isinstance(largest, int) and largest > 0 else None,
            confidence="read" if metal else "estimated",
            driver=_system_version(machine),
            sources=() if total is None else (f"shared_total_bytes: {source}",),
        ),
    )


def _system_version(machine: Machine) -> str | None:
    """macOS with its version: the graphics driver is part of it. None where it is not told, as in older reports."""
    try:
        version = machine.answer(" ".join(_VERSION), lambda: machine.clients.run(_VERSION))
    except LookupError:
        return None
    return f"macOS {str(version).strip()}" if str(version).strip() else None


def _working_set(
    files: Files, metal: dict[str, Json], memory: int | None, limit_bytes: int | None
) -> tuple[int | None, str]:
    """What Metal recommends, never more than there is: the setting is passed through even above that."""
    told = metal.get("recommended_max_working_set_bytes")
    if isinstance(told, int) and told > 0:
        size, source = told, "Metal recommendedMaxWorkingSetSize"
    elif limit_bytes:
        size, source = limit_bytes, "sysctl iogpu.wired_limit_mb"
    elif memory:
        size, source = working_set_rule(memory), "estimated: two thirds of up to 32 GiB, three quarters of more"
    else:
        files.warnings.append("How much memory graphics may take is not known: neither Metal nor hw.memsize answers.")
        return None, ""
    if memory is not None and size > memory:
        files.warnings.append(f"The working set of {size} bytes is more than there is, so all memory counts instead.")
        return memory, f"{source}, lowered to hw.memsize"
    return size, source


def read_metal() -> Json:
    """What Metal says of its default device, through the Objective-C runtime. Raises OSError where there is none."""
    if sys.platform == "darwin":
        import ctypes

        # Without CoreGraphics a program without windows gets no device.
        ctypes.CDLL("/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics")
        metal = ctypes.CDLL("/System/Library/Frameworks/Metal.framework/Metal")
        runtime = ctypes.CDLL("/usr/lib/libobjc.A.dylib")
        metal.MTLCreateSystemDefaultDevice.restype = ctypes.c_void_p
        runtime.sel_registerName.restype = ctypes.c_void_p
        runtime.sel_registerName.argtypes = [ctypes.c_char_p]
        device = metal.MTLCreateSystemDefaultDevice()

        def send(receiver: int, selector: str, result: type) -> Json:
            # On ARM every message needs the very signature of its method.
            message = ctypes.CFUNCTYPE(result, ctypes.c_void_p, ctypes.c_void_p)(("objc_msgSend", runtime))
            return message(receiver, runtime.sel_registerName(selector.encode()))

        if device:
            name = send(send(device, "name", ctypes.c_void_p), "UTF8String", ctypes.c_char_p)
            return {
                "name": name.decode("utf-8", "replace") if name else None,
                "recommended_max_working_set_bytes": send(device, "recommendedMaxWorkingSetSize", ctypes.c_uint64),
                "current_allocated_bytes": send(device, "currentAllocatedSize", ctypes.c_uint64),
                "max_buffer_bytes": send(device, "maxBufferLength", ctypes.c_uint64),
                "has_unified_memory": send(device, "hasUnifiedMemory", ctypes.c_bool),
            }
    raise OSError("Metal finds no device")
