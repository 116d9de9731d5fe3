"""Whether this machine shows any sign of an accelerator. Which ones an engine can use, only that engine says."""

from __future__ import annotations

import sys
from pathlib import Path

from probes.machine import Machine, Where

DRM = "/sys/class/drm"
"""Where Linux lists graphics cards."""
_NVIDIA_DRIVERS = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/dxg", "/proc/driver/nvidia/version")
"""Signs of a driver on Linux, Jetson and WSL2: without one, NVML is not even loaded."""
_SIGNS = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/kfd", "/dev/dri", "/dev/dxg")
"""NVIDIA, Jetson, AMD's compute driver, any graphics driver, WSL."""


def has_accelerator(root: Where = Path("/"), platform: str | None = None) -> bool:
    """True where a driver is present; always on macOS and Windows, where looking costs more than asking an engine."""
    if platform is None:
        platform = root.system.lower() if isinstance(root, Machine) else sys.platform
    if platform in ("darwin", "win32", "windows"):
        return True
    machine = root if isinstance(root, Machine) else Machine(root)
    return any(machine.exists(sign) for sign in _SIGNS)


def has_nvidia_driver(machine: Machine) -> bool:
    """Whether NVML is worth asking."""
    return (
        machine.clients.nvml is not None
        or machine.was_asked("nvml")
        or machine.system == "Windows"
        or (machine.system == "Linux" and any(machine.exists(path) for path in _NVIDIA_DRIVERS))
    )
