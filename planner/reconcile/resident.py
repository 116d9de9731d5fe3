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
from planner.memory.program import LIBRARY_NAME
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


def left_to_chance(plan: MemoryPlan, measurement: Measurement) -> int:
    """How much less of the compute buffers may be in use than predicted, as several people's prompts met.

    A llama-server computes prompts that are shorter than a ubatch together or apart, whichever request comes first,
    and apart they reach only their tokens' part of each tensor: 6 MiB less of 15 in one of four equal runs. The
    library gets all prompts at once and fills its batches always alike.
    """
    context, everyone = plan.context, measurement.everyone
    if context is None or measurement.engine_build.startswith(LIBRARY_NAME):
        return 0
    together = min(everyone.users * everyone.prompt_tokens, context.n_ubatch)
    compute = sum(a.resident_bytes for a in plan.allocations if a.component == "compute" and a.device == CPU_DEVICE)
    return compute * max(0, together - everyone.prompt_tokens) // context.n_ubatch


def process_of(plan: MemoryPlan) -> Allocation | None:
    """The allocation of the program itself."""
    return next((a for a in plan.allocations if a.buffer == "process"), None)


def overhead_of(plan: MemoryPlan, measurement: Measurement, rows: Sequence[HostRow]) -> int | None:
    """What is resident beside everything that is named; None where the figures do not determine it.

    They do not where much depends on how prompts met, where pages of files come or go, where a buffer that is only
    estimated was not logged, and where it comes to less than nothing: then some other figure is wrong.
    """
    beside, process, less = _beside_named(plan, measurement, rows), process_of(plan), left_to_chance(plan, measurement)
    allowed = RESIDENT_TOLERANCE * (measurement.steady.resident_bytes or 0)
    if beside is None or process is None or sum(map(_uncertainty, rows)) + less / 2 > allowed:
        return None
    # Anything up to `less` more says the same: what was predicted, if it is among that, else the middle.
    return process.resident_bytes if 0 <= process.resident_bytes - beside <= less else beside + less // 2


def _beside_named(plan: MemoryPlan, measurement: Measurement, rows: Sequence[HostRow]) -> int | None:
    """The same, where prompts filled whole ubatches together; else it may be more."""
    measured, process = measurement.steady.resident_bytes, process_of(plan)
    if measured is None or process is None or plan.context is None:
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
    parts = known_parts(plan, measurement, rows)
    rest = delta - sum(part.delta_bytes for part in parts)
    causes = [f"{part.cause} ({_signed(part.delta_bytes)})" for part in parts]
    if abs(rest) > tolerance:
        causes.append(
            _learned_now(plan, overhead_bytes)
            if overhead_bytes is not None and _is_guessed(plan)
            else _left_open(plan, measurement, rows, rest)
        )
    return "; ".join(causes)


def _is_guessed(plan: MemoryPlan) -> bool:
    """Whether what the program itself holds is an estimate."""
    process = process_of(plan)
    return process is not None and process.certainty == "estimated"


def _learned_now(plan: MemoryPlan, overhead_bytes: int) -> str:
    # The one figure that was guessed; whether the rest is right shows in the next run.
    return f"{_program(plan)} hold {overhead_bytes / MIB:.1f} MiB, {_not_estimated(plan)}: learned now"


def _left_open(plan: MemoryPlan, measurement: Measurement, rows: Sequence[HostRow], rest_bytes: int) -> str:
    """What the figures prove of a rest that teaches nothing."""
    less, beside = left_to_chance(plan, measurement), _beside_named(plan, measurement, rows)
    is_guessed = _is_guessed(plan) and beside is not None
    if less and is_guessed and not -less <= rest_bytes <= 0:
        most = ((beside or 0) + less) / MIB
        return (
            f"{_program(plan)} hold {(beside or 0) / MIB:.1f} to {most:.1f} MiB, {_not_estimated(plan)}: how prompts "
            "shorter than a ubatch met leaves open how much"
        )
    met = min(less, max(0, -rest_bytes))
    if not met:
        return unexplained(rest_bytes)
    met_how = "prompts shorter than a ubatch are computed together or apart, as chance will have it"
    chance = f"{met_how} ({_signed(-met)} at most)"
    if is_guessed:
        return f"{chance}, or {_program(plan)} hold less than was estimated"
    return chance if met == -rest_bytes else f"{chance}; {unexplained(rest_bytes + met)}"


def _program(plan: MemoryPlan) -> str:
    on_cards = any(not device.is_cpu for device in plan.devices)
    return "program, vocabulary and driver" if on_cards else "program and vocabulary"


def _not_estimated(plan: MemoryPlan) -> str:
    process = process_of(plan)
    return f"not the estimated {(process.resident_bytes if process else 0) / MIB:.1f}"


def _signed(size_bytes: int) -> str:
    return f"{'+' if size_bytes > 0 else '-'}{format_bytes(abs(size_bytes))}"
