"""What the process really held beside what was predicted, and what of the difference the figures at hand prove.

The system gives sums: all memory, and what of it is mapped from files. llama.cpp's log gives the buffers, the prompt
cache and the checkpoints. Each known contribution is taken off; what is left is the process itself while that is an
estimate, and unexplained afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.hardware import CPU_DEVICE
from planner.measure.measurement import Measurement
from planner.memory import Allocation, MemoryPlan
from planner.reconcile.causes import unexplained
from planner.units import MIB, format_bytes

RESIDENT_TOLERANCE = 0.02
"""A resident total this close (as a fraction) needs no cause: heaps are never the same twice."""


@dataclass(frozen=True, slots=True)
class Part:
    """One known contribution to the difference."""

    cause: str
    delta_bytes: int
    pages: bool = False
    """Whether it is about pages of files, of which the system says no more than a sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """What of a reserved row matters here: a component in the memory of the process, and how far it was off."""

    name: str
    allocations: Sequence[Allocation]
    delta_bytes: int | None
    """Reserved less predicted; None where the log does not say."""
    mapped: bool


def known_parts(plan: MemoryPlan, measurement: Measurement, rows: Sequence[HostRow]) -> list[Part]:
    """The contributions that llama.cpp's log and the system's figures prove."""
    log = measurement.log
    parts = [
        Part(f"{row.name} as reserved", _resident_share(row))
        for row in rows
        if row.delta_bytes and not row.mapped and row.allocations
    ]
    if log.checkpoints_bytes:
        planned = plan.resident_bytes(component="checkpoints", device=CPU_DEVICE)
        parts.append(Part("checkpoints as logged", log.checkpoints_bytes - planned))
    if log.prompt_cache_bytes:
        planned = plan.resident_bytes(component="prompt_cache", device=CPU_DEVICE)
        parts.append(Part("the prompt cache has grown", log.prompt_cache_bytes - planned))
    return [part for part in (*parts, *_file_pages(plan, measurement)) if part.delta_bytes]


def _resident_share(row: HostRow) -> int:
    """A buffer that is larger than predicted is used to the same degree."""
    reserved = sum(a.reserved_bytes for a in row.allocations)
    resident = sum(a.resident_bytes for a in row.allocations)
    return round((row.delta_bytes or 0) * (resident / reserved if reserved else 1.0))


def _file_pages(plan: MemoryPlan, measurement: Measurement) -> list[Part]:
    """What of the mapped weights is not in memory, or what of the file is, though its weights were copied elsewhere."""
    held = _of_files(measurement)
    weights = [a for a in plan.allocations if a.component == "weights"]
    mapped = sum(a.resident_bytes for a in weights if a.device == CPU_DEVICE and a.buffer.endswith("_Mapped"))
    if held is None or not mapped:
        return []
    if held < mapped:
        return [Part("pages of mapped weights are not in memory", held - mapped, pages=True)]
    copied = sum(a.resident_bytes for a in weights if not a.buffer.endswith("_Mapped") and not a.on_demand)
    process = process_of(plan)
    beyond = held - mapped - (process.resident_bytes if process else 0)  # the program's own files are among them
    if copied and beyond > RESIDENT_TOLERANCE * (measurement.steady.resident_bytes or 0):
        return [Part("dormant pages of weights that were copied elsewhere", min(beyond, copied), pages=True)]
    return []


def _of_files(measurement: Measurement) -> int | None:
    """Resident pages of files, those that other processes map as well in full; None where the system does not say."""
    resident, anonymous = measurement.steady.resident_bytes, measurement.steady.anonymous_bytes
    return None if resident is None or anonymous is None else resident - anonymous


def left_to_chance(plan: MemoryPlan, measurement: Measurement) -> bool:
    """Whether several people's prompts may or may not have shared a ubatch, and with it the compute buffer."""
    everyone = measurement.everyone
    return plan.context is not None and everyone.users > 1 and everyone.prompt_tokens < plan.context.n_ubatch


def process_of(plan: MemoryPlan) -> Allocation | None:
    """The allocation of the program itself."""
    return next((a for a in plan.allocations if a.buffer == "process"), None)


def overhead_of(plan: MemoryPlan, measurement: Measurement, rows: Sequence[HostRow]) -> int | None:
    """What is resident beside everything that is named; None where the figures do not determine it.

    They do not where prompts met by chance, where pages of files come or go, where a buffer that is only estimated was
    not logged, and where it comes to less than nothing: then some other figure is wrong.
    """
    measured, process = measurement.steady.resident_bytes, process_of(plan)
    if measured is None or process is None or plan.context is None or left_to_chance(plan, measurement):
        return None
    parts = known_parts(plan, measurement, rows)
    if any(part.pages for part in parts) or any(row.mapped and row.delta_bytes for row in rows):
        return None
    if sum(map(_uncertainty, rows)) > RESIDENT_TOLERANCE * measured:
        return None
    named = plan.resident_bytes(device=CPU_DEVICE) - process.resident_bytes + sum(p.delta_bytes for p in parts)
    rest = measured - named
    return rest if rest > 0 else None


def _uncertainty(row: HostRow) -> int:
    """By how much a component may be off that the log says nothing of."""
    if row.delta_bytes is not None:
        return 0
    return sum((a.high_bytes or a.reserved_bytes) - (a.low_bytes or a.reserved_bytes) for a in row.allocations)


def resident_cause(
    plan: MemoryPlan, measurement: Measurement, rows: Sequence[HostRow], overhead_bytes: int | None
) -> str:
    """Why the process held another sum than predicted; empty where it did not."""
    measured = measurement.steady.resident_bytes
    if measured is None:
        return "this system does not say what a process holds"
    delta = measured - plan.resident_bytes(device=CPU_DEVICE)
    tolerance = RESIDENT_TOLERANCE * measured
    if abs(delta) <= tolerance:
        return ""
    if left_to_chance(plan, measurement):
        return "prompts shorter than a ubatch are computed together or apart, as chance will have it"
    parts = known_parts(plan, measurement, rows)
    rest = delta - sum(part.delta_bytes for part in parts)
    causes = [f"{part.cause} ({_signed(part.delta_bytes)})" for part in parts]
    if abs(rest) > tolerance:
        causes.append(_rest(plan, rest, overhead_bytes))
    return "; ".join(causes)


def _rest(plan: MemoryPlan, rest_bytes: int, overhead_bytes: int | None) -> str:
    process = process_of(plan)
    if overhead_bytes is None or process is None or process.certainty != "estimated":
        return unexplained(rest_bytes)
    # The one figure that was guessed; whether the rest is right shows in the next run.
    what = (
        "program, vocabulary and driver"
        if any(not device.is_cpu for device in plan.devices)
        else ("program and vocabulary")
    )
    return (
        f"{what} hold {overhead_bytes / MIB:.1f} MiB, not the estimated {process.resident_bytes / MIB:.1f}: learned now"
    )


def _signed(size_bytes: int) -> str:
    return f"{'+' if size_bytes > 0 else '-'}{format_bytes(abs(size_bytes))}"
