"""What lies on accelerators beside llama.cpp's buffers, by the tables that it prints before a load and at its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.engine.log import EngineLog
from planner.engine.log_table import DeviceMemory
from planner.hardware import Device
from planner.memory import Allocation, MemoryPlan
from planner.reconcile.causes import beyond_driver, short_of_driver, unexplained
from planner.units import MIB, format_bytes

_PRINTED_BYTES = 3 * MIB
"""Three figures of whole MiB, each rounded down, may be so far off together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What became less free on a device than this server's buffers explain."""

    device: str
    description: str
    driver: Allocation | None
    """What was predicted of it."""
    taken_bytes: int
    rounding_bytes: int
    cause: str

    @property
    def is_driver(self) -> bool:
        """Whether it can be the driver's: not less than nothing, and nothing lies elsewhere."""
        return self.taken_bytes >= -self.rounding_bytes and not self.cause.startswith("spilled")


def taken_beside_buffers(plan: MemoryPlan, log: EngineLog) -> Iterator[Taken]:
    """For each card with memory of its own that the log's tables speak of, before and after.

    Not for what shares the machine's memory or is reached over a network: there, what is free says nothing of us.
    """
    before = {row.name: row for row in log.memory_before}
    for row in log.memory_at_end:
        device = next((d for d in plan.hardware.accelerators if d.name == row.name), None)
        if device is None or not _is_own(device):
            continue
        free = before[row.name].free_bytes if row.name in before else None
        if free is None or row.free_bytes is None:
            continue
        taken = free - row.free_bytes - row.self_bytes
        drivers = (a for a in plan.allocations if a.device == row.name and a.buffer == "driver")
        driver = next(drivers, None)
        yield Taken(
            device=row.name,
            description=row.description,
            driver=driver,
            taken_bytes=taken,
            rounding_bytes=_PRINTED_BYTES,
            cause=_cause(row, driver, taken),
        )


def _is_own(device: Device) -> bool:
    return device.pool == device.name and device.kind != "rpc"


def _cause(row: DeviceMemory, driver: Allocation | None, taken: int) -> str:
    if row.unaccounted_bytes is not None and row.unaccounted_bytes < -_PRINTED_BYTES:
        outside = format_bytes(-row.unaccounted_bytes)
        return f"spilled to shared memory: {outside} more than the device has are in use"
    if taken < -_PRINTED_BYTES:
        return f"another process gave back {format_bytes(-taken)} or more meanwhile"
    predicted = driver.reserved_bytes if driver else 0
    if abs(taken - predicted) <= _PRINTED_BYTES:
        return ""
    low, high = (driver.low_bytes, driver.high_bytes) if driver else (None, None)
    if low is not None and high is not None and taken <= high:
        if taken < low:
            return short_of_driver(low)
        return f"driver context and workspaces, within the range of the estimate ({format_bytes(low)} to " + (
            f"{format_bytes(high)})"
        )
    if high is not None and taken > high:
        return f"{beyond_driver(taken, predicted, high)}, by another process perhaps"
    return unexplained(taken - predicted)
