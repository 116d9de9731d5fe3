"""What the app does in its threads: plan a grid, measure a cell, write a command. Nothing here draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from planner.campaign import Campaign
from planner.engine.arguments import server_arguments
from planner.engine.dry_run import Library, dry_run
from planner.engine.find import Engine
from planner.engine.library import AnyEngine
from planner.errors import DoesNotFitError, UsageError
from planner.export import shell_command
from planner.fit import Cell, Grid, Position
from planner.grids import refined
from planner.hardware import Hardware
from planner.launch import CacheType, Launch
from planner.measure import Progress
from planner.memory import predict
from planner.memory.program import LLAMA_SERVER
from planner.model import Model
from planner.reconcile.dry_comparison import DryComparison, compare
from planner.reconcile.reconciliation import Reconciliation
from planner.reconcile.record import Record
from planner.sweeps import machine_of, seen_by
from planner.tui.choices import Choice, to_ask, to_run


class RunCampaign(Protocol):
    """What measures: `planner.campaign.run_campaign`, or a stand-in."""

    def __call__(
        self,
        model: Model,
        launches: Sequence[Launch],
        engine: AnyEngine,
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
    find_engine: Callable[[], AnyEngine]
    """Raises EngineError where there is neither a llama-server nor the library."""
    find_choices: Callable[[], Iterable[Choice]]
    record: Record
    run: RunCampaign
    answerer: Callable[[AnyEngine | None], AbstractContextManager[Engine | Library]]
    """Who is asked for dry runs, given the llama-server that was found. Raises EngineError where there is nobody."""
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


def refine_grid(
    choice: Choice,
    grid: Grid,
    engine: AnyEngine | None,
    sources: Sources,
    *,
    near: Callable[[], Position],
    cancelled: Callable[[], bool],
) -> Iterator[Grid]:
    """The grid after each of llama.cpp's answers; a model that is not here is asked about by its ghost."""
    with sources.answerer(engine) as answerer, to_ask(choice) as model:
        yield from refined(model, grid, answerer, near=near, cancelled=cancelled)


def ask_cell(
    selected: Selected,
    hardware: Hardware,
    engine: AnyEngine | None,
    sources: Sources,
    *,
    cancelled: Callable[[], bool],
) -> DryComparison:
    """The prediction of the cell's launch beside llama.cpp's own accounting of it."""
    launch, program = selected.cell.plan.launch, engine.program if engine else LLAMA_SERVER
    hardware = seen_by(engine, hardware) if engine else hardware
    with sources.answerer(engine) as answerer, to_ask(selected.choice) as model:
        answer = dry_run(model, launch, answerer, cancelled=cancelled)
        learned = sources.record.learned(model, hardware, engine.build if engine else None)
        return compare(model, predict(model, launch, hardware, learned=learned, program=program), answer)


def measure_cell(
    selected: Selected,
    engine: AnyEngine,
    sources: Sources,
    *,
    ghost: bool,
    on_progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
) -> Reconciliation:
    """Run the launch that the cell was planned with for real: of the file, or of a ghost of it.

    Raises PlannerError and Cancelled; no server is left in any case.
    """
    with to_run(selected.choice, ghost=ghost) as model:
        campaign = sources.run(
            model,
            (selected.cell.plan.launch,),
            engine,
            sources.record,
            on_progress=lambda _index, progress: on_progress(progress),
            cancelled=cancelled,
            detect=lambda: machine_of(engine, sources.detect),
        )
    if not campaign.runs:
        raise DoesNotFitError(f"Nothing was started: {campaign.not_run[0].plan.verdict_reason}")
    return campaign.runs[0]


def write_command(selected: Selected, engine: AnyEngine) -> str:
    """The command that starts what `measure_cell` would measure, quoted for a shell."""
    choice, cell = selected.choice, selected.cell
    if choice.model is None or choice.problem:
        raise UsageError(choice.problem)
    if choice.is_ghost:
        raise UsageError(
            f"{choice.name} is a ghost: its file is not kept, so there is nothing to serve.",
            "Download the model, then its command can be copied here.",
        )
    if not isinstance(engine, Engine):
        raise UsageError(
            "There is no llama-server here, so no command of one can be checked or copied.",
            "Name one with --engine PATH.",
        )
    if cell.plan.refusal:
        raise UsageError(cell.plan.refusal)
    path = choice.model.path.absolute()
    return shell_command([str(engine.path), *server_arguments(cell.plan.launch, path, engine.flags)])
