"""Prediction against measurement: per device and component what differs, and why.

Reserved and resident are compared apart. llama.cpp's log says what it reserved, per device and component; the system
says what the process holds, as one sum. Errors must not cancel, so no total stands for its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from planner.engine.dry_figures import DryFigure, DryRun
from planner.engine.log import ROUNDING_BYTES, BufferKind, EngineLog, read_log
from planner.hardware import CPU_DEVICE
from planner.measure.measurement import Measurement
from planner.memory import Allocation, MemoryPlan
from planner.reconcile.cards import Taken, taken_beside_buffers
from planner.reconcile.causes import MOVED, NOT_SAID, UNEXPLAINED, Difference, cause_of
from planner.reconcile.held import NEAR_BYTES, Held, Reserved, held_on_devices
from planner.reconcile.lessons import ComputeLesson, DriverLesson, Lessons
from planner.reconcile.resident import HostRow, overhead_of, resident_cause
from planner.units import format_bytes

_Kind = Literal["kv", "state", "compute", "output"]
"""Both a component of a plan and a kind of buffer in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the comparison."""

    component: str
    """`weights (CPU_Mapped)`, `kv`, ..., `resident`, `resident on CUDA0`."""
    device: str = CPU_DEVICE
    """Whose memory it is."""
    predicted_bytes: int
    dry_run_bytes: int | None = None
    """What llama.cpp said before the run, in whole MiB, rounded down; None where it was not asked or did not say."""
    reserved_bytes: int | None = None
    """Of all that is resident on an accelerator: llama.cpp's buffers there. None elsewhere."""
    measured_bytes: int | None
    """What llama.cpp reserved or the process held; None when neither said."""
    rounding_bytes: int = 0
    """How far the measured figure may be off: it was printed rounded, or drivers hand out whole pieces."""
    cause: str
    """Why they differ; empty when they agree, `unexplained` with the size when we do not know."""
    witness: str = ""
    """Who told the measured figure, where that is neither llama.cpp's log nor the system's figure of the process."""

    @property
    def delta_bytes(self) -> int | None:
        """Measured less predicted; 0 where rounding alone separates them."""
        if self.measured_bytes is None:
            return None
        delta = self.measured_bytes - self.predicted_bytes
        return 0 if abs(delta) <= self.rounding_bytes else delta

    @property
    def is_unexplained(self) -> bool:
        """Whether nothing that is known here says why they differ, or not of all of it."""
        return UNEXPLAINED in self.cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """One run held against its prediction, which was made before it."""

    plan: MemoryPlan
    measurement: Measurement
    reserved: tuple[Row, ...]
    resident: Row
    on_devices: tuple[Row, ...] = ()
    """What was resident on each accelerator, as its driver tells it."""
    lessons: Lessons = field(default_factory=Lessons)
    """What the next prediction can learn from it."""

    @property
    def learned_overhead_bytes(self) -> int | None:
        """What the process held beside everything that the plan names; None where it could not be told."""
        return self.lessons.overhead_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """A row with what it was made of."""

    row: Row
    kind: BufferKind
    buffer: str
    allocations: Sequence[Allocation]


def reconcile(plan: MemoryPlan, measurement: Measurement, dry_run: DryRun | None = None) -> Reconciliation:
    """Hold a run against its prediction, beside what llama.cpp itself said of the launch before it."""
    compared = list(_compared(plan, measurement.log, dry_run))
    host = [_host_row(entry) for entry in compared if entry.row.device == CPU_DEVICE]
    overhead = overhead_of(plan, measurement, host)
    log = _whole_log(measurement)
    taken = {card.device: card for card in taken_beside_buffers(plan, log)}
    held = list(held_on_devices(plan, measurement, log, [_reserved(entry.row) for entry in compared]))
    beside = {card.device.name: card for card in held if card.beside_bytes is not None}
    resident = Row(
        component="resident",
        predicted_bytes=plan.resident_bytes(device=CPU_DEVICE),
        measured_bytes=measurement.steady.resident_bytes,
        cause=resident_cause(plan, measurement, host, overhead),
    )
    drivers = [
        _told_by_process(plan, beside[name], taken.get(name)) if name in beside else _told_by_tables(plan, taken[name])
        for name in dict.fromkeys((*beside, *taken))
    ]
    return Reconciliation(
        plan=plan,
        measurement=measurement,
        reserved=(*(entry.row for entry in compared), *(row for row, _ in drivers)),
        resident=resident,
        on_devices=tuple(_held_row(card, dry_run) for card in held),
        lessons=Lessons(
            overhead_bytes=overhead,
            drivers=tuple(lesson for _, lesson in drivers if lesson is not None),
            compute=tuple(_compute_lessons(compared)),
        ),
    )


def _reserved(row: Row) -> Reserved:
    return Reserved(name=row.component, device=row.device, delta_bytes=row.delta_bytes or 0)


def _held_row(held: Held, dry_run: DryRun | None) -> Row:
    name = held.device.name
    figures = [figure.size_bytes for figure in (dry_run.figures if dry_run else ()) if figure.device == name]
    is_process = held.sample.process_bytes is not None or held.sample.taken_bytes is None
    return Row(
        component=f"{'resident' if is_process else 'taken'} on {name}",
        device=name,
        predicted_bytes=held.predicted_bytes,
        dry_run_bytes=sum(figures) if figures else None,
        reserved_bytes=held.reserved_bytes,
        measured_bytes=held.sample.held_bytes,
        rounding_bytes=NEAR_BYTES,
        cause=held.cause,
        witness=held.witness,
    )


def _whole_log(measurement: Measurement) -> EngineLog:
    """With what the server said at its end, which came after everything else was read."""
    return read_log(measurement.log_text.splitlines()) if measurement.log_text else measurement.log


def _compared(plan: MemoryPlan, log: EngineLog, dry_run: DryRun | None) -> Iterator[_Compared]:
    """Buffers of weights one by one, all else by kind and device."""
    yield from _with_moves([_weights(plan, log, buffer) for buffer in _weight_buffers(plan, log)])
    devices = list(dict.fromkeys([*(a.device for a in plan.allocations), *map(log.device_of, log.buffers)]))
    for kind in _KINDS:
        yield from _with_moves(
            [
                compared
                for device in devices
                if (compared := _of_kind(plan, log, dry_run, kind, device, len(devices) > 1)) is not None
            ]
        )


_KINDS: tuple[_Kind, ...] = ("kv", "state", "compute", "output")


def _of_kind(
    plan: MemoryPlan, log: EngineLog, dry_run: DryRun | None, kind: _Kind, device: str, several: bool
) -> _Compared | None:
    allocations = [a for a in plan.allocations if a.device == device and _kind_of(a) == kind]
    logged = [buffer for buffer in log.of_kind(kind) if log.device_of(buffer) == device]
    if not allocations and not logged:
        return None
    # A log that names a kind on some device says that the others have none of it.
    reserved = sum(buffer.size_bytes for buffer in logged) if log.of_kind(kind) else None
    figure = _figure(plan, dry_run, kind, device)
    row = Row(
        component=f"{kind} on {device}" if several else kind,
        device=device,
        predicted_bytes=sum(a.reserved_bytes for a in allocations),
        dry_run_bytes=figure.size_bytes if figure else None,
        measured_bytes=reserved,
        rounding_bytes=len(logged) * (ROUNDING_BYTES + 1),
        cause="",
    )
    return _judged(row, kind, device, allocations, plan, log, figure)


def _kind_of(allocation: Allocation) -> str:
    """What the log calls it. A second context that guesses ahead logs its buffers like the first."""
    if allocation.component != "draft":
        return allocation.component
    return next((kind for kind in ("compute", "output") if kind in allocation.buffer), "kv")


def _figure(plan: MemoryPlan, dry_run: DryRun | None, kind: _Kind, device: str) -> DryFigure | None:
    """llama.cpp's figure for this kind; None where it gave one sum for this and others that are there, too."""
    figure = dry_run.figure(kind, device) if dry_run else None
    if figure is None or any(plan.bytes(component=c, device=device) for c in figure.components if c != kind):
        return None
    return figure


def _weight_buffers(plan: MemoryPlan, log: EngineLog) -> list[str]:
    predicted = [a.buffer for a in plan.allocations if a.component == "weights"]
    return list(dict.fromkeys([*predicted, *map(log.type_of, log.of_kind("model"))]))


def _weights(plan: MemoryPlan, log: EngineLog, buffer: str) -> _Compared:
    allocations = [a for a in plan.allocations if a.component == "weights" and a.buffer == buffer]
    logged = [b for b in log.of_kind("model") if log.type_of(b) == buffer]
    # A log that names some model buffers and not this one says that this one is empty.
    reserved = sum(b.size_bytes for b in logged) if log.of_kind("model") else None
    device = allocations[0].device if allocations else log.device_of(logged[0])
    row = Row(
        component=f"weights ({buffer})",
        device=device,
        predicted_bytes=sum(a.reserved_bytes for a in allocations),
        measured_bytes=reserved,
        rounding_bytes=max(1, len(logged)) * (ROUNDING_BYTES + 1),
        cause="",
    )
    return _judged(row, "model", buffer, allocations, plan, log, None)


def _judged(
    row: Row,
    kind: BufferKind,
    buffer: str,
    allocations: Sequence[Allocation],
    plan: MemoryPlan,
    log: EngineLog,
    figure: DryFigure | None,
) -> _Compared:
    """The row with its cause."""
    if row.measured_bytes is None:
        row = replace(row, cause=NOT_SAID)
    elif row.delta_bytes:
        difference = Difference(
            kind=kind,
            device=row.device,
            buffer=buffer,
            plan=plan,
            log=log,
            allocations=allocations,
            predicted_bytes=row.predicted_bytes,
            reserved_bytes=row.measured_bytes,
            dry_figure=figure,
        )
        row = replace(row, cause=cause_of(difference))
    return _Compared(row=row, kind=kind, buffer=buffer, allocations=allocations)


def _with_moves(compared: list[_Compared]) -> Iterator[_Compared]:
    """Rows of one kind that nothing explains one by one may be right in all: then something lies elsewhere."""
    open_rows = [entry.row for entry in compared if entry.row.is_unexplained]
    rounding = sum(row.rounding_bytes for row in open_rows)
    moved = len(open_rows) > 1 and abs(sum(row.delta_bytes or 0 for row in open_rows)) <= rounding
    for entry in compared:
        yield replace(entry, row=replace(entry.row, cause=MOVED)) if moved and entry.row.is_unexplained else entry


def _host_row(entry: _Compared) -> HostRow:
    return HostRow(
        name=entry.row.component,
        allocations=entry.allocations,
        delta_bytes=entry.row.delta_bytes,
        mapped=entry.buffer.endswith("_Mapped"),
    )


_Driver = tuple[Row, DriverLesson | None]
"""What a driver took on a device, and what that teaches."""


def _told_by_process(plan: MemoryPlan, held: Held, tables: Taken | None) -> _Driver:
    """By what the process held there beside llama.cpp's buffers; whether llama.cpp's own tables agree is told."""
    size = held.beside_bytes or 0
    cause = held.driver_cause
    if tables is not None and abs(tables.taken_bytes - size) > NEAR_BYTES:
        differ = f"llama.cpp's tables leave {format_bytes(tables.taken_bytes)}, others' included"
        cause = f"{cause}; {differ}" if cause else differ
    label = plan.hardware.pool_named(held.device.pool).label or held.device.name
    return _driver(
        plan,
        held.device.name,
        label if tables is None else tables.description,
        (held.driver, size, NEAR_BYTES),
        cause,
        teaches=held.is_driver,
    )


def _told_by_tables(plan: MemoryPlan, taken: Taken) -> _Driver:
    figures = (taken.driver, taken.taken_bytes, taken.rounding_bytes)
    return _driver(plan, taken.device, taken.description, figures, taken.cause, teaches=taken.is_driver)


def _driver(
    plan: MemoryPlan,
    device: str,
    description: str,
    figures: tuple[Allocation | None, int, int],
    cause: str,
    *,
    teaches: bool,
) -> _Driver:
    predicted, size, rounding = figures
    row = Row(
        component=f"driver on {device}",
        device=device,
        predicted_bytes=predicted.reserved_bytes if predicted else 0,
        measured_bytes=size,
        rounding_bytes=rounding,
        cause=cause,
    )
    entry = next(d for d in plan.hardware.nameable if d.name == device)
    lesson = DriverLesson(device=device, description=description, driver=entry.driver, size_bytes=max(0, size))
    total = plan.hardware.pool_named(entry.pool).total_bytes
    return row, lesson if teaches and (total is None or size <= total) else None


def _compute_lessons(compared: Iterable[_Compared]) -> Iterator[ComputeLesson]:
    """Of estimated compute buffers that no dry run spoke of: what one says needs no learning."""
    for entry in compared:
        if entry.kind != "compute" or entry.row.dry_run_bytes is not None:
            continue
        certainties = {allocation.certainty for allocation in entry.allocations}
        if entry.row.measured_bytes and entry.row.predicted_bytes and certainties <= {"estimated", "learned"}:
            yield ComputeLesson(
                device=entry.row.device,
                predicted_bytes=entry.row.predicted_bytes,
                reserved_bytes=entry.row.measured_bytes if entry.row.delta_bytes else entry.row.predicted_bytes,
                corrected="learned" in certainties,
            )
