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
from planner.reconcile.causes import beyond_driver, dequantised_layers, short_of_driver, unexplained
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
    may_have_spilled: bool
    """Whether some of the buffers lie, or may lie, in the machine's memory."""
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
        return self.beside_bytes is not None and self.beside_bytes >= 0 and not self.may_have_spilled

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
            may_have_spilled=look.may_have_spilled,
            cause="; ".join(
                filter(None, (*map(_as_reserved, buffers), beside, _elsewhere(look), _other_witness(look)))
            ),
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

    @property
    def beyond_pinned_bytes(self) -> int:
        """What the process holds of the machine's memory for a card, beyond the buffers that are meant to lie there."""
        if self.sample.process_bytes is None or self.sample.shares_memory:
            return 0
        return (self.sample.shared_bytes or 0) - self.pinned_bytes

    @property
    def may_have_spilled(self) -> bool:
        """Whether what lies there may be buffers: the card has less than is certain of it, or there is more than a
        driver takes at least.
        """
        return self.beyond_pinned_bytes > (NEAR_BYTES if self.has_too_little else max(NEAR_BYTES, self.low_bytes))

    @property
    def has_too_little(self) -> bool:
        """Whether the process holds less there than llama.cpp's buffers and the least that the driver takes."""
        held = self.sample.process_bytes
        return held is not None and held - self.reserved_bytes < self.low_bytes - NEAR_BYTES


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
    beyond = look.beyond_pinned_bytes
    if beside < -NEAR_BYTES and beyond > NEAR_BYTES:
        told = f"{_SPILLED}: {format_bytes(beyond)} beyond what is pinned lie in the machine's memory"
        rest = _within(look, beside + beyond)
        return f"{told}; {rest}" if rest else told
    if look.has_too_little and beyond > NEAR_BYTES:
        told = f"{format_bytes(beyond)} beyond what is pinned lie in the machine's memory"
        return f"{_SPILLED} in part, or a driver that takes little: {told}"
    return _within(look, beside)


def _elsewhere(look: _Look) -> str:
    """What lies in the machine's memory though the card has all that was predicted; else it was told already."""
    beyond = look.beyond_pinned_bytes
    if beyond <= NEAR_BYTES or look.has_too_little:
        return ""
    return f"{format_bytes(beyond)} beyond what is pinned lie in the machine's memory: spilled, or the driver's own"


def _within(look: _Look, beside: int) -> str:
    return _too_little(look, -beside) if beside < -NEAR_BYTES else _of_driver(look, beside)


def _too_little(look: _Look, missing: int) -> str:
    """Less than llama.cpp's buffers alone."""
    if look.sample.process_bytes is not None:
        predicted = look.driver.reserved_bytes if look.driver else 0
        return unexplained(-missing - predicted)
    if look.sample.shares_memory:
        return f"{format_bytes(missing)} are not counted as taken by the driver, or another process gave some back"
    free = look.sample.free_bytes
    if free is not None and free < missing:
        return f"the device is full: {format_bytes(missing)} {_SPILLED}, or another process gave some back"
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
        return short_of_driver(low)
    for layer in dequantised_layers(look.plan, look.log, look.sample.device):
        if beside <= high + layer + NEAR_BYTES:
            types = f"{look.plan.launch.cache_type_k} is dequantised there"
            return f"a workspace for one layer's keys and values in f16 beside the driver's context ({types})"
    return beyond_driver(beside, predicted, high) + ("" if is_process else ", by another process perhaps")


def _other_witness(look: _Look) -> str:
    """What the whole device says where it is not what the process holds; empty where both are one."""
    process, taken = look.sample.process_bytes, look.sample.taken_bytes
    if process is None or taken is None or abs(taken - process) <= NEAR_BYTES:
        return ""
    size = format_bytes(abs(taken - process))
    if taken > process:
        return f"{size} more became less free on the device: another process took it, or the driver outside of this one"
    return f"{size} less became less free on the device: another process gave it back"
