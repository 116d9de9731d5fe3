"""Prediction against llama.cpp's dry run: where they differ, and the plan as llama.cpp has it.

Both speak of what is reserved at the start. Versions of llama.cpp differ in their compute buffers; where the
formula and the build at hand disagree, the build is right about itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.engine.dry_figures import DryFigure, DryRun
from planner.engine.log import ROUNDING_BYTES
from planner.memory import Allocation, Component, MemoryPlan, predict
from planner.model import Model
from planner.units import format_bytes, format_mib

_KNOWN_TO_LLAMA_CPP: tuple[Component, ...] = ("weights", "kv", "state", "compute", "output")
_TAKEN_OVER: tuple[Component, ...] = ("kv", "state", "compute", "output", "projector")
"""Not the weights: a dry run counts them as read, and a launch may map them."""

_PROJECTOR: tuple[Component, ...] = ("projector",)
_PADDING_BYTES = 1 << 16
"""More than lies between the tensors of a projector."""

_STILL_MISSING = (
    "This version does not know the architecture, and llama.cpp does: its own figures are in the table. What the "
    "process holds beside them, and what grows later, is not known."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRow:
    """One line of the comparison."""

    device: str
    components: tuple[Component, ...]
    predicted_bytes: int
    low_bytes: int
    """The range of the prediction; the same figure twice where it is exact."""
    high_bytes: int
    figure: DryFigure | None
    """What llama.cpp says; None where it does not say."""
    note: str = ""

    @property
    def delta_bytes(self) -> int | None:
        """llama.cpp's figure less the prediction; 0 where the prediction would be printed as that figure."""
        if self.figure is None:
            return None
        return 0 if self.figure.holds(self.predicted_bytes) else self.figure.size_bytes - self.predicted_bytes

    @property
    def beyond_range(self) -> bool:
        """Whether they differ by more than the range of the prediction."""
        return self.figure is not None and (
            self.figure.high_bytes < self.low_bytes or self.figure.low_bytes > self.high_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DryComparison:
    """A prediction held against llama.cpp's own accounting."""

    dry_run: DryRun
    rows: tuple[DryRow, ...]
    plan: MemoryPlan
    """The plan with llama.cpp's figures wherever the prediction is not what llama.cpp says."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each figure that lies beyond the prediction's range, with both."""
        return tuple(_warning(row, self.dry_run) for row in self.rows if row.beyond_range)


def compare(model: Model, plan: MemoryPlan, dry_run: DryRun) -> DryComparison:
    """Hold a prediction against the dry run of the same launch on the same machine."""
    if dry_run.refusal:
        refusal = plan.refusal or f"llama.cpp refuses this launch: {dry_run.refusal.rstrip('.')}."
        return DryComparison(dry_run=dry_run, rows=(), plan=replace(plan, refusal=refusal))
    if plan.refusal:
        note = f"{dry_run.way} {dry_run.build} itself does not refuse this launch."
        return DryComparison(dry_run=dry_run, rows=(), plan=replace(plan, notes=(*plan.notes, note)))
    rows = (*_rows(model, plan, dry_run), *_projector_row(plan, dry_run))
    for row in rows:
        plan = _with_projector(plan, row) if row.components == _PROJECTOR else _taken_over(plan, row)
    if model.rules is None:
        plan = replace(plan, missing=_STILL_MISSING)
    return DryComparison(dry_run=dry_run, rows=rows, plan=plan)


def _projector_row(plan: MemoryPlan, dry_run: DryRun) -> list[DryRow]:
    """All of a projector, of which llama.cpp says one sum without the padding between its tensors."""
    device, told = next((a.device for a in plan.allocations if a.buffer == "mmproj"), ""), dry_run.projector_bytes
    if not device or told is None:
        return []
    figure = DryFigure(
        device=device,
        components=_PROJECTOR,
        size_bytes=told,
        low_bytes=told - ROUNDING_BYTES,
        high_bytes=told + ROUNDING_BYTES + _PADDING_BYTES,
    )
    everywhere = [a for a in plan.allocations if a.component == "projector"]
    known = any(a.buffer == "mmproj compute" for a in everywhere)
    at_most = sum(a.reserved_bytes if a.high_bytes is None else a.high_bytes for a in everywhere)
    return [
        DryRow(
            device=device,
            components=_PROJECTOR,
            predicted_bytes=sum(a.reserved_bytes for a in everywhere),
            low_bytes=sum(a.reserved_bytes if a.low_bytes is None else a.low_bytes for a in everywhere),
            high_bytes=at_most if known else max(at_most, figure.high_bytes),
            figure=figure,
        )
    ]


def _with_projector(plan: MemoryPlan, row: DryRow) -> MemoryPlan:
    """The plan with what is left of llama.cpp's sum beside the weights, where the formula says nothing or another."""
    if not row.delta_bytes or row.figure is None:
        return plan
    told = row.figure.size_bytes
    found = next((a for a in plan.allocations if a.buffer == "mmproj compute" and a.device == row.device), None)
    left = max(0, told - row.predicted_bytes + (found.reserved_bytes if found else 0))
    compute = Allocation(
        device=row.device,
        component="projector",
        buffer="mmproj compute",
        reserved_bytes=left,
        resident_bytes=left,
        growth_bytes=found.growth_bytes if found else 0,
        certainty="dry run",
        low_bytes=max(0, left - ROUNDING_BYTES - _PADDING_BYTES),
        high_bytes=left + ROUNDING_BYTES,
        reason=f"what llama.cpp's dry run says of the projector, {format_mib(told)}, less everything else of it",
    )
    kept = tuple(a for a in plan.allocations if a is not found)
    return replace(plan, allocations=(*kept, compute), missing=plan.missing if found else "")


def _rows(model: Model, plan: MemoryPlan, dry_run: DryRun) -> tuple[DryRow, ...]:
    unmapped = predict(model, replace(plan.launch, load_mode="none"), plan.hardware)
    devices = dict.fromkeys((*(a.device for a in plan.allocations), *(f.device for f in dry_run.figures)))
    rows = []
    for device in devices:
        seen: set[Component] = set()
        for component in _KNOWN_TO_LLAMA_CPP:
            figure = dry_run.figure(component, device)
            components = (component,) if figure is None else figure.components
            if component not in seen:
                source = unmapped if component == "weights" and figure is not None else plan
                rows.append(_row(source, device, components, figure, mapped=plan))
            seen.update(components)
    return tuple(row for row in rows if row.predicted_bytes or (row.figure and row.figure.high_bytes))


def _row(
    plan: MemoryPlan, device: str, components: tuple[Component, ...], figure: DryFigure | None, *, mapped: MemoryPlan
) -> DryRow:
    allocations = _allocations(plan, device, components)
    predicted = sum(a.reserved_bytes for a in allocations)
    differs = predicted != sum(a.reserved_bytes for a in _allocations(mapped, device, components))
    present = tuple(c for c in components if any(a.component == c and a.reserved_bytes for a in allocations))
    return DryRow(
        device=device,
        components=present or components,
        predicted_bytes=predicted,
        low_bytes=sum(a.reserved_bytes if a.low_bytes is None else a.low_bytes for a in allocations),
        high_bytes=sum(a.reserved_bytes if a.high_bytes is None else a.high_bytes for a in allocations),
        figure=figure,
        note="both as if they were read, not mapped" if differs else "",
    )


def _allocations(plan: MemoryPlan, device: str, components: tuple[Component, ...]) -> list[Allocation]:
    return [a for a in plan.allocations if a.device == device and a.component in components]


def _taken_over(plan: MemoryPlan, row: DryRow) -> MemoryPlan:
    """The plan with llama.cpp's figure in place of what it differs from; estimates that it confirms are marked."""
    figure = row.figure
    if figure is None or row.components[0] not in _TAKEN_OVER:
        return plan
    group = _allocations(plan, row.device, row.components)
    if not group:
        return replace(plan, allocations=(*plan.allocations, _unforeseen(row, figure)))
    changed = {id(allocation): _as_told(allocation, row, figure) for allocation in group}
    return replace(plan, allocations=tuple(changed.get(id(a), a) for a in plan.allocations))


def _as_told(allocation: Allocation, row: DryRow, figure: DryFigure) -> Allocation:
    if row.delta_bytes == 0:
        if allocation.certainty != "estimated" or allocation.reserved_bytes != row.predicted_bytes:
            return allocation
        return replace(allocation, certainty="dry run", low_bytes=figure.low_bytes, high_bytes=figure.high_bytes)
    told = _share(figure.high_bytes, allocation, row)  # what it may be: a figure of whole MiB is rounded down
    return replace(
        allocation,
        certainty="dry run",
        reserved_bytes=told,
        resident_bytes=allocation.resident_bytes * told // max(1, allocation.reserved_bytes),
        low_bytes=_share(figure.low_bytes, allocation, row),
        high_bytes=told,
        reason=f"{format_mib(told)} by llama.cpp's dry run, not {format_mib(allocation.reserved_bytes)} = "
        f"{allocation.reason}",
    )


def _share(size_bytes: int, allocation: Allocation, row: DryRow) -> int:
    """What of one figure falls to one of its buffers: by what was predicted of each."""
    return size_bytes * allocation.reserved_bytes // max(1, row.predicted_bytes)


def _unforeseen(row: DryRow, figure: DryFigure) -> Allocation:
    return Allocation(
        device=row.device,
        component=row.components[0],
        buffer=f"{row.device} {row.components[0]}",
        reserved_bytes=figure.high_bytes,
        resident_bytes=figure.high_bytes,
        certainty="dry run",
        low_bytes=figure.low_bytes,
        high_bytes=figure.high_bytes,
        reason="by llama.cpp's dry run; the formula knows nothing of it",
    )


def _warning(row: DryRow, dry_run: DryRun) -> str:
    assert row.figure is not None
    used = "its figure is used" if row.components[0] in _TAKEN_OVER else "the prediction stands"
    span = (
        f", {format_bytes(row.low_bytes)} to {format_bytes(row.high_bytes)} at most"
        if row.low_bytes < row.high_bytes
        else ""
    )
    return (
        f"{dry_run.way} {dry_run.build} reserves {format_bytes(row.figure.size_bytes)} for "
        f"{' and '.join(row.components)} on {row.device} where the formula says {format_bytes(row.predicted_bytes)}"
        f"{span}: {used}."
    )
