"""What a server held on each accelerator as its driver told it during the run, against what was predicted, and why.

Where the driver tells of processes, its figure is the process's and nothing else; where not, what became less free on
the device stands in, which other programs change, too. Either holds llama.cpp's buffers, as its log names them, and
what the driver takes for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.engine.log import EngineLog
from planner.hardware import Device
from planner.measure.measurement import DeviceSample, Measurement
from planner.memory import Allocation, MemoryPlan
from planner.reconcile.causes import dequantised_layers, unexplained
from planner.units import MIB, format_bytes

NEAR_BYTES = 8 * MIB
"""Drivers hand out whole MiB for every buffer: figures this near are one."""
TAKEN = "what became less free since before the start, whoever took it"
_SPILLED = "spilled to shared memory"
PROCESS = "what the driver says that the process holds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """One component of llama.cpp's buffers on one device."""

    name: str
    device: str
    delta_bytes: int
    """Logged less predicted; 0 where the log does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One accelerator at the moment when everyone had worked."""

    device: Device
    sample: DeviceSample
    predicted_bytes: int
    reserved_bytes: int
    """llama.cpp's buffers there, all together: as logged, and as predicted where the log does not say."""
    driver: Allocation | None
    """What was predicted of what the driver takes for itself."""
    driver_cause: str
    """Why it was not that much; empty where it was."""
    cause: str
    """Why the device held another sum than was predicted; empty where it did not."""

    @property
    def beside_bytes(self) -> int | None:
        """What the process holds there beside llama.cpp's buffers; None where only the whole device has a figure."""
        held = self.sample.process_bytes
        return None if held is None else held - self.reserved_bytes

    @property
    def is_driver(self) -> bool:
        """Whether that is the driver's own: nothing of the buffers lies elsewhere."""
        return self.beside_bytes is not None and self.beside_bytes >= 0 and not self.driver_cause.startswith(_SPILLED)

    @property
    def witness(self) -> str:
        """Whose figure it is."""
        if self.sample.process_bytes is not None:
            return PROCESS
        return f"{TAKEN} ({self.sample.reason})" if self.sample.taken_bytes is not None else ""


def held_on_devices(
    plan: MemoryPlan, measurement: Measurement, log: EngineLog, reserved: Sequence[Reserved]
) -> Iterator[Held]:
    """Every accelerator that was looked at."""
    for sample in measurement.steady.devices:
        device = next((d for d in plan.hardware.nameable if d.name == sample.device), None)
        if device is None:
            continue
        buffers = [row for row in reserved if row.device == device.name]
        driver = next((a for a in plan.allocations if a.device == device.name and a.buffer == "driver"), None)
        predicted = plan.bytes(device=device.name)
        reserved_bytes = predicted - (driver.reserved_bytes if driver else 0) + sum(row.delta_bytes for row in buffers)
        look = _Look(plan, log, sample, reserved_bytes, driver)
        beside = _why_beside(look)
        yield Held(
            device=device,
            sample=sample,
            predicted_bytes=predicted,
            reserved_bytes=reserved_bytes,
            driver=driver,
            driver_cause=beside,
            cause="; ".join(cause for cause in (*map(_as_reserved, buffers), beside, _other_witness(look)) if cause),
        )


@dataclass(frozen=True, slots=True)
class _Look:
    plan: MemoryPlan
    log: EngineLog
    sample: DeviceSample
    reserved_bytes: int
    driver: Allocation | None

    @property
    def low_bytes(self) -> int:
        """The least that the driver takes for itself."""
        if self.driver is None:
            return 0
        return self.driver.reserved_bytes if self.driver.low_bytes is None else self.driver.low_bytes

    @property
    def high_bytes(self) -> int:
        """The most."""
        if self.driver is None:
            return 0
        return self.driver.reserved_bytes if self.driver.high_bytes is None else self.driver.high_bytes

    @property
    def pinned_bytes(self) -> int:
        """Buffers that are meant to lie in the machine's memory where the device reaches it."""
        return sum(buffer.size_bytes for buffer in self.log.buffers if buffer.device.endswith("_Host"))


def _as_reserved(buffer: Reserved) -> str:
    if not buffer.delta_bytes:
        return ""
    return (
        f"{buffer.name} as reserved ({'+' if buffer.delta_bytes > 0 else '-'}{format_bytes(abs(buffer.delta_bytes))})"
    )


def _why_beside(look: _Look) -> str:
    """Why what lies there beside llama.cpp's buffers is not what was predicted of the driver."""
    held = look.sample.held_bytes
    if held is None:
        return f"not told: {look.sample.reason}"
    beside = held - look.reserved_bytes
    beyond = _beyond_pinned(look)
    if beside < -NEAR_BYTES and beyond > NEAR_BYTES:
        spilled = min(-beside, beyond)
        told = f"{_SPILLED}: {format_bytes(spilled)} of buffers lie in the machine's memory"
        left = -beside - spilled
        return f"{told}; {unexplained(-left)}" if left > NEAR_BYTES else told
    if 0 <= beside < look.low_bytes - NEAR_BYTES and beyond > NEAR_BYTES:
        told = f"{format_bytes(beyond)} beyond what is pinned lie in the machine's memory"
        return f"{_SPILLED} in part, or a driver that takes little: {told}"
    return _too_little(look, -beside) if beside < -NEAR_BYTES else _of_driver(look, beside)


def _beyond_pinned(look: _Look) -> int:
    """What the process holds of the machine's memory for a card, beyond the buffers that are meant to lie there."""
    if look.sample.process_bytes is None or look.sample.shares_memory:
        return 0
    return (look.sample.shared_bytes or 0) - look.pinned_bytes


def _too_little(look: _Look, missing: int) -> str:
    """Less than llama.cpp's buffers alone."""
    if look.sample.process_bytes is not None:
        return unexplained(-missing)
    if look.sample.shares_memory:
        return f"{format_bytes(missing)} are not counted as taken by the driver, or another process gave some back"
    free = look.sample.free_bytes
    if free is not None and free < missing:
        return f"{_SPILLED}: the device is full, and {format_bytes(missing)} of buffers lie elsewhere"
    return f"another process gave back {format_bytes(missing)} or more meanwhile"


def _of_driver(look: _Look, beside: int) -> str:
    """Why so much lies there beside llama.cpp's buffers."""
    driver, is_process = look.driver, look.sample.process_bytes is not None
    predicted = driver.reserved_bytes if driver else 0
    if abs(beside - predicted) <= NEAR_BYTES:
        return ""
    low, high = look.low_bytes, look.high_bytes
    if low <= beside <= high:
        return f"driver context, within the range of the estimate ({format_bytes(low)} to {format_bytes(high)})"
    if beside < low:
        if is_process:
            return f"the driver takes {format_bytes(max(0, beside))} for itself, less than predicted"
        return "the driver's context was there already when free memory was read"
    for layer in dequantised_layers(look.plan, look.log, look.sample.device):
        if beside <= high + layer + NEAR_BYTES:
            types = f"{look.plan.launch.cache_type_k} is dequantised there"
            return f"a workspace for one layer's keys and values in f16 beside the driver's context ({types})"
    return unexplained(beside - high) + ("" if is_process else ", by another process perhaps")


def _other_witness(look: _Look) -> str:
    """What the whole device says where it is not what the process holds; empty where both are one."""
    process, taken = look.sample.process_bytes, look.sample.taken_bytes
    if process is None or taken is None or abs(taken - process) <= NEAR_BYTES:
        return ""
    size = format_bytes(abs(taken - process))
    if taken > process:
        return f"{size} more became less free on the device: another process took it, or the driver outside of this one"
    return f"{size} less became less free on the device: another process gave it back"
