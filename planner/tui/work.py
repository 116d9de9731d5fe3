"""What the app does in its threads: plan a grid, measure a cell, write a command. Nothing here draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from planner.campaign import DEFAULT_CONTEXT, Campaign, launches_for, seen_by
from planner.engine.arguments import server_arguments
from planner.engine.find import Engine
from planner.errors import DoesNotFitError, ModelError, UsageError
from planner.export import shell_command
from planner.fit import Cell, bound_growth, contexts_for, fit_layers, make_grid
from planner.hardware import Hardware
from planner.launch import CacheType, Launch
from planner.measure import Progress
from planner.memory import predict
from planner.model import Model
from planner.reconcile.reconciliation import Reconciliation
from planner.reconcile.record import Record
from planner.tui.choices import Choice, on_disk
from planner.tui.view import Grid


class RunCampaign(Protocol):
    """What measures: `planner.campaign.run_campaign`, or a stand-in."""

    def __call__(
        self,
        model: Model,
        launches: Sequence[Launch],
        engine: Engine,
        record: Record | None,
        *,
        on_progress: Callable[[int, Progress], None],
        cancelled: Callable[[], bool],
        detect: Callable[[], Hardware],
    ) -> Campaign:
        """Measure the launches, one after the other."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where the app gets everything from that it does not compute; tests give stand-ins."""

    detect: Callable[[], Hardware]
    find_engine: Callable[[], Engine]
    """Raises EngineError where there is none."""
    find_choices: Callable[[], Iterable[Choice]]
    record: Record
    run: RunCampaign
    clock: Callable[[], float]
    """Seconds of a clock that only goes forward."""


Key = tuple[Choice, CacheType, int, int]
"""What tells one measured launch from another: model, cache type, context, users."""


@dataclass(frozen=True, slots=True)
class Selected:
    """A cell of the grid of one model."""

    choice: Choice
    cell: Cell

    @property
    def key(self) -> Key:
        """What its measurement is kept under."""
        return self.choice, self.cell.cache_type, self.cell.ctx_per_user, self.cell.users


def plan_grid(model: Model, hardware: Hardware, engine: Engine | None, record: Record) -> Grid:
    """Every cell of a model's grid, planned with what was learned from earlier runs of it.

    What grows later is bounded as it is for a measurement, so that a cell is planned, measured and copied as
    one and the same launch.
    """
    hardware = seen_by(engine, hardware) if engine else hardware
    kinds = sorted({device.kind for device in hardware.accelerators})
    overhead = record.learned_overhead(model, engine.build if engine else None, kinds)
    contexts = contexts_for(_trained_context(model))
    cells = make_grid(model, hardware, contexts=contexts, overhead_bytes=overhead)
    return Grid(contexts=contexts, cells=tuple(_bounded(model, cell, hardware, overhead) for cell in cells))


def _trained_context(model: Model) -> int:
    try:
        return max(1, model.hyperparameters.n_ctx_train)
    except ModelError:
        return DEFAULT_CONTEXT  # the plan of every cell says what is wrong with the header


def _bounded(model: Model, cell: Cell, hardware: Hardware, overhead_bytes: int | None) -> Cell:
    launch = fit_layers(model, cell.plan.launch, hardware)
    launch = bound_growth(model, launch, hardware, overhead_bytes=overhead_bytes)
    if launch == cell.plan.launch:
        return cell
    return replace(cell, plan=predict(model, launch, hardware, overhead_bytes=overhead_bytes))


def measure_cell(
    selected: Selected,
    hardware: Hardware,
    engine: Engine,
    sources: Sources,
    *,
    on_progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
) -> Reconciliation:
    """Run the cell's launch, planned for `hardware`, for real.

    Raises PlannerError and Cancelled; no server is left in any case.
    """
    with on_disk(selected.choice) as model:
        campaign = sources.run(
            model,
            _launches(model, selected.cell, hardware, engine),
            engine,
            sources.record,
            on_progress=lambda _index, progress: on_progress(progress),
            cancelled=cancelled,
            detect=lambda: seen_by(engine, sources.detect()),
        )
    if not campaign.runs:
        raise DoesNotFitError(f"Nothing was started: {campaign.not_run[0].verdict_reason}")
    return campaign.runs[0]


def write_command(selected: Selected, hardware: Hardware, engine: Engine) -> str:
    """The command that starts what `measure_cell` would measure, quoted for a shell."""
    choice, cell = selected.choice, selected.cell
    if choice.model is None:
        raise UsageError(choice.problem)
    if choice.entry is not None:
        raise UsageError(
            f"{choice.name} is a ghost: its file is not kept, so there is nothing to serve.",
            "Download the model, then its command can be copied here.",
        )
    if cell.plan.refusal:
        raise UsageError(cell.plan.refusal)
    (launch,) = _launches(choice.model, cell, hardware, engine)
    path = choice.model.path.absolute()
    return shell_command([str(engine.path), *server_arguments(launch, path, engine.flags)])


def _launches(model: Model, cell: Cell, hardware: Hardware, engine: Engine) -> tuple[Launch, ...]:
    return launches_for(
        model,
        seen_by(engine, hardware),
        users=cell.users,
        ctx_per_user=cell.ctx_per_user,
        cache_types=(cell.cache_type,),
    )
