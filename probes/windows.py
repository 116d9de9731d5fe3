"""What Windows tells of its memory and its display adapters. Read in Microsoft's documentation, not run.

The registry is asked because WMI keeps an adapter's memory in 32 bits: 24 GB shows as 4095 MB there.
"""

from __future__ import annotations

import re
import sys

from probes.gpu import Gpu, Vendor
from probes.machine import Files
from probes.report import Json

_CLASS = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"
"""The class of display adapters."""
_VENDORS: dict[str, Vendor] = {"10de": "nvidia", "1002": "amd", "8086": "intel"}
_INTEGRATED = re.compile(
    r"Intel.*(UHD|HD Graphics|Iris|Arc\(TM\) Graphics|Intel\(R\) Graphics)|Radeon(\(TM\))?( \d{3}M)? Graphics"
)


def windows_memory(files: Files) -> dict[str, int] | None:
    """What GlobalMemoryStatusEx says of memory and of the commit limit; None where it fails."""
    names = ("total_bytes", "available_bytes", "commit_total_bytes", "commit_available_bytes")
    answer = files.answer("windows memory", files.machine.clients.windows_memory or _memory_status)
    found = answer if isinstance(answer, dict) else {}
    sizes = {name: size for name in names if isinstance(size := found.get(name), int) and size >= 0}
    if len(sizes) < len(names) or sizes["available_bytes"] > sizes["total_bytes"]:
        files.warnings.append("GlobalMemoryStatusEx: an answer that cannot be")
        return None
    return sizes


def probe_windows_gpus(files: Files) -> list[Gpu]:
    """The adapters of makers without a library of their own; NVIDIA's are told by NVML."""
    answer = files.answer("windows adapters", files.machine.clients.windows_adapters or _read_adapters)
    gpus = []
    for adapter in answer if isinstance(answer, list) else []:
        gpu = _gpu(adapter) if isinstance(adapter, dict) else None
        if gpu is None:
            files.warnings.append(f"display adapter not understood: {str(adapter)[:80]}")
        elif gpu.vendor != "nvidia":
            gpus.append(gpu)
    return gpus


def _gpu(adapter: dict[str, Json]) -> Gpu | None:
    name, total = adapter.get("name"), adapter.get("memory_bytes")
    if not isinstance(name, str):
        return None
    identifier = re.search(r"ven_([0-9a-f]{4})", str(adapter.get("device", "")).lower())
    vendor = _VENDORS.get(identifier[1], "other") if identifier else "other"
    size = total if isinstance(total, int) and total > 0 else None
    version = adapter.get("driver")
    return Gpu(
        vendor=vendor,
        name=name,
        shares_memory=bool(_INTEGRATED.search(name)),
        total_bytes=size,
        # Nothing tells a program how much others hold; a driver moves it out of the way, and all grows slow.
        free_bytes=size,
        confidence="low",
        driver=f"{vendor} {version}" if isinstance(version, str) and version else None,
        sources=("total_bytes: registry HardwareInformation.qwMemorySize",),
    )


_STATUS_FIELDS = (
    "ullTotalPhys ullAvailPhys ullTotalPageFile ullAvailPageFile ullTotalVirtual ullAvailVirtual "
    "ullAvailExtendedVirtual"
).split()


def _memory_status() -> Json:
    if sys.platform == "win32":
        import ctypes

        class MemoryStatus(ctypes.Structure):
            _fields_ = [
                ("dwLength", ctypes.c_uint32),
                ("dwMemoryLoad", ctypes.c_uint32),
                *((name, ctypes.c_uint64) for name in _STATUS_FIELDS),
            ]

        status = MemoryStatus(dwLength=ctypes.sizeof(MemoryStatus))
        if ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
            return {
                "total_bytes": status.ullTotalPhys,
                "available_bytes": status.ullAvailPhys,
                "commit_total_bytes": status.ullTotalPageFile,
                "commit_available_bytes": status.ullAvailPageFile,
            }
    raise OSError("GlobalMemoryStatusEx does not answer")


def _read_adapters() -> Json:
    adapters: list[Json] = []
    if sys.platform == "win32":
        import winreg

        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _CLASS) as adapter_class:
            for index in range(winreg.QueryInfoKey(adapter_class)[0]):
                name = winreg.EnumKey(adapter_class, index)
                if re.fullmatch(r"\d{4}", name):
                    with winreg.OpenKey(adapter_class, name) as key:
                        adapters.append(
                            {
                                "name": _value(key, "DriverDesc"),
                                "device": _value(key, "MatchingDeviceId"),
                                "driver": _value(key, "DriverVersion"),
                                "memory_bytes": _number(_value(key, "HardwareInformation.qwMemorySize")),
                            }
                        )
    return adapters


def _value(key: Json, name: str) -> Json:
    if sys.platform == "win32":
        import winreg

        try:
            return winreg.QueryValueEx(key, name)[0]
        except OSError:
            return None
    return None


def _number(value: Json) -> int | None:
    """A REG_QWORD, which some drivers write as bytes."""
    if isinstance(value, bytes):
        return int.from_bytes(value, "little")
    return value if isinstance(value, int) else None
