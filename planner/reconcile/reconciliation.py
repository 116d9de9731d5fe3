"""Prediction against measurement: per component what differs, and why.

Reserved and resident are compared apart. llama.cpp's log says what it reserved, per component; the system
says what the process holds, as one sum. Errors must not cancel, so no total stands for its parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from planner.engine.dry_figures import DryRun
from planner.engine.log import ROUNDING_BYTES, Buffer, BufferKind, EngineLog
from planner.hardware import CPU_DEVICE
from planner.measure.measurement import Measurement
from planner.memory import Allocation, MemoryPlan
from planner.units import MIB, format_bytes

_Kind = Literal["kv", "state", "compute", "output"]
"""Both a component of a plan and a kind of buffer in the log."""

UNEXPLAINED = "unexplained"
RESIDENT_TOLERANCE = 0.02
"""A resident total this close (as a fraction) needs no cause: heaps are never the same twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the comparison."""

    component: str
    """`weights (CPU_Mapped)`, `kv`, ..., `resident`."""
    predicted_bytes: int
    dry_run_bytes: int | None = None
    """What llama.cpp said before the run, in whole MiB, rounded down; None where it was not asked or did not say."""
    measured_bytes: int | None
    """What llama.cpp reserved or the process held; None when neither said."""
    rounding_bytes: int = 0
    """How far the measured figure may be off because it was printed rounded."""
    cause: str
    """Why they differ; empty when they agree, `unexplained` when we do not know."""

    @property
    def delta_bytes(self) -> int | None:
        """Measured less predicted; 0 where rounding alone separates them."""
        if self.measured_bytes is None:
            return None
        delta = self.measured_bytes - self.predicted_bytes
        return 0 if abs(delta) <= self.rounding_bytes else delta


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """One run held against its prediction, which was made before it."""

    plan: MemoryPlan
    measurement: Measurement
    reserved: tuple[Row, ...]
    resident: Row
    learned_overhead_bytes: int | None
    """What the process held beside everything that the plan names; None where it could not be told."""


def reconcile(plan: MemoryPlan, measurement: Measurement, dry_run: DryRun | None = None) -> Reconciliation:
    """Hold a run against its prediction, beside what llama.cpp itself said of the launch before it."""
    learned = _learned_overhead(plan, measurement)
    return Reconciliation(
        plan=plan,
        measurement=measurement,
        reserved=tuple(_reserved_rows(plan, measurement.log, dry_run)),
        resident=_resident_row(plan, measurement, learned),
        learned_overhead_bytes=learned,
    )


def _reserved_rows(plan: MemoryPlan, log: EngineLog, dry_run: DryRun | None) -> list[Row]:
    rows = [_weights_row(plan, log, buffer) for buffer in _weight_buffers(plan, log)]
    devices = list(dict.fromkeys([*(a.device for a in plan.allocations), *(b.placed_on for b in log.buffers)]))
    for kind in _KINDS:
        for device in devices:
            allocations = [a for a in plan.allocations if a.device == device and _kind_of(a) == kind]
            logged = [buffer for buffer in log.of_kind(kind) if buffer.placed_on == device]
            if allocations or logged:
                row = _kind_row(kind, device if len(devices) > 1 else "", allocations, logged, log)
                rows.append(replace(row, dry_run_bytes=_dry_bytes(plan, dry_run, kind, device)))
    return rows


def _dry_bytes(plan: MemoryPlan, dry_run: DryRun | None, kind: _Kind, device: str) -> int | None:
    """llama.cpp's figure for this kind; None where it gave one sum for this and others that are there, too."""
    figure = dry_run.figure(kind, device) if dry_run else None
    if figure is None or any(plan.bytes(component=c, device=device) for c in figure.components if c != kind):
        return None
    return figure.size_bytes


_KINDS: tuple[_Kind, ...] = ("kv", "state", "compute", "output")


def _kind_of(allocation: Allocation) -> str:
    """What the log calls it. A second context that guesses ahead logs its buffers like the first."""
    if allocation.component != "draft":
        return allocation.component
    return next((kind for kind in ("compute", "output") if kind in allocation.buffer), "kv")


def _kind_row(
    kind: BufferKind, device: str, allocations: list[Allocation], logged: list[Buffer], log: EngineLog
) -> Row:
    name = f"{kind} on {device}" if device else kind
    predicted = sum(a.reserved_bytes for a in allocations)
    # A log that names a kind on some device says that the others have none of it.
    reserved = sum(buffer.size_bytes for buffer in logged) if log.of_kind(kind) else None
    return _reserved_row(name, allocations, predicted, reserved, len(logged))


def _reserved_row(name: str, allocations: list[Allocation], predicted: int, reserved: int | None, figures: int) -> Row:
    rounding = figures * (ROUNDING_BYTES + 1)
    return Row(
        component=name,
        predicted_bytes=predicted,
        measured_bytes=reserved,
        rounding_bytes=rounding,
        cause=_cause(allocations, predicted, reserved, rounding),
    )


def _weight_buffers(plan: MemoryPlan, log: EngineLog) -> list[str]:
    predicted = [a.buffer for a in plan.allocations if a.component == "weights"]
    logged = [b.device for b in log.buffers if b.kind == "model"]
    return list(dict.fromkeys([*predicted, *logged]))


def _weights_row(plan: MemoryPlan, log: EngineLog, buffer: str) -> Row:
    allocations = [a for a in plan.allocations if a.component == "weights" and a.buffer == buffer]
    predicted = sum(a.reserved_bytes for a in allocations)
    # A log that names some model buffers and not this one says that this one is empty.
    reserved = log.buffer_bytes("model", buffer)
    if reserved is None and log.buffer_bytes("model") is not None:
        reserved = 0
    row = _reserved_row(f"weights ({buffer})", allocations, predicted, reserved, 1)
    if row.cause == UNEXPLAINED and buffer == "CPU_REPACK":
        built_for = ", ".join(sorted(f for f in log.cpu_features if f.startswith(("AVX", "NEON", "DOTPROD"))))
        cause = "this engine rearranges other types than this processor could"
        cause += f": it is built for {built_for}" if built_for else ""
        return replace(row, cause=cause)
    return row


def _cause(allocations: list[Allocation], predicted: int, reserved: int | None, rounding: int) -> str:
    if reserved is None:
        return "this engine's log does not say"
    if abs(reserved - predicted) <= rounding:
        return ""
    low = sum(a.reserved_bytes if a.low_bytes is None else a.low_bytes for a in allocations)
    high = sum(a.reserved_bytes if a.high_bytes is None else a.high_bytes for a in allocations)
    if allocations and low <= reserved <= high and low < high:
        return f"within the range of the estimate ({format_bytes(low)} to {format_bytes(high)})"
    return UNEXPLAINED


def _resident_row(plan: MemoryPlan, measurement: Measurement, learned: int | None) -> Row:
    predicted = plan.resident_bytes(device=CPU_DEVICE)
    measured = measurement.steady.resident_bytes
    return Row(
        component="resident",
        predicted_bytes=predicted,
        measured_bytes=measured,
        cause=_resident_cause(plan, measurement, predicted, learned),
    )


def _left_to_chance(plan: MemoryPlan, measurement: Measurement) -> bool:
    """Whether several people's prompts may or may not have shared a ubatch, and with it the compute buffer."""
    everyone = measurement.everyone
    return plan.context is not None and everyone.users > 1 and everyone.prompt_tokens < plan.context.n_ubatch


def _resident_cause(plan: MemoryPlan, measurement: Measurement, predicted: int, learned: int | None) -> str:
    measured = measurement.steady.resident_bytes
    if measured is None:
        return "this system does not say what a process holds"
    if abs(measured - predicted) <= RESIDENT_TOLERANCE * measured:
        return ""
    if _left_to_chance(plan, measurement):
        return "prompts shorter than a ubatch are computed together or apart, as chance will have it"
    process = _process(plan)
    if learned is not None and process is not None and process.certainty == "estimated":
        # The one figure that was guessed; whether the rest is right shows in the next run.
        return f"program and vocabulary hold {learned / MIB:.1f} MiB, not the estimated {_mib(process)}: learned now"
    return UNEXPLAINED


def _mib(allocation: Allocation) -> str:
    return f"{allocation.resident_bytes / MIB:.1f}"


def _process(plan: MemoryPlan) -> Allocation | None:
    return next((a for a in plan.allocations if a.buffer == "process"), None)


def _learned_overhead(plan: MemoryPlan, measurement: Measurement) -> int | None:
    """What is resident beside everything else that the plan names."""
    measured = measurement.steady.resident_bytes
    process = _process(plan)
    if measured is None or process is None or plan.context is None:
        return None
    if _left_to_chance(plan, measurement):
        return None
    rest = measured - (plan.resident_bytes(device=CPU_DEVICE) - process.resident_bytes)
    # Less than nothing says that some other figure is wrong, and nothing about the process.
    return rest if rest > 0 else None
