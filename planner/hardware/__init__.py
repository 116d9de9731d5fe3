"""The machine a launch is planned for, as plain values; the one place that asks `probes` what this machine is.

A `Pool` is physical memory that can run out; a `Device` is where llama.cpp places buffers, and draws on one
pool. `Hardware.detect()` looks at this machine, `Hardware.of(report)` at one that was looked at elsewhere, and
`Hardware.simulate()` makes one.
"""

from __future__ import annotations

from planner.hardware.hardware import Hardware
from planner.hardware.values import (
    CPU_DEVICE,
    HOST_POOL,
    Device,
    DeviceKind,
    Graphics,
    Holding,
    Limit,
    Pool,
    SeenDevice,
    kind_of_device,
    kinds_of_devices,
)

__all__ = [
    "CPU_DEVICE",
    "HOST_POOL",
    "Device",
    "DeviceKind",
    "Graphics",
    "Hardware",
    "Holding",
    "Limit",
    "Pool",
    "SeenDevice",
    "kind_of_device",
    "kinds_of_devices",
]
