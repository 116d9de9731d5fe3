"""The grid of one model: planned by formula at once, then refined by dry runs until every figure is llama.cpp's.

Shared by the command line and the app.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from planner.engine.dry_run import DryRun, DryRunCache, Library, dry_run
from planner.engine.find import Engine
from planner.engine.library import AnyEngine
from planner.engine.process import Cancelled
from planner.errors import EngineError, ModelError
from planner.fit import (
    DIVIDED,
    MAIN_CACHE_TYPES,
    Cell,
    Grid,
    Position,
    Source,
    bound_growth,
    contexts_for,
    fit_layers,
    make_grid,
)
from planner.hardware import Hardware
from planner.launch import CacheType, Launch
from planner.memory import Learned, MemoryPlan, predict
from planner.memory.program import LLAMA_SERVER, Program
from planner.model import Model
from planner.reconcile.dry_comparison import compare
from planner.reconcile.record import Record
from planner.reconcile.refinement import Point, refine
from planner.sweeps import DEFAULT_CONTEXT, seen_by

MOST_FAILURES = 3
"""After so many questions without an answer nothing more is asked."""


def plan_grid(
    model: Model,
    hardware: Hardware,
    engine: AnyEngine | None,
    record: Record,
    *,
    base: Launch = DIVIDED,
    cache_types: Sequence[CacheType] = MAIN_CACHE_TYPES,
    projector: Model | None = None,
) -> Grid:
    """Every cell of a model's grid, planned with what was learned from earlier runs of it.

    What grows later is bounded as it is for a measurement, so that a cell is planned, measured and copied as
    one and the same launch.
    """
    program = LLAMA_SERVER
    if engine is not None:
        hardware, base, program = seen_by(engine, hardware), engine.launch(base), engine.program
    learned = record.learned(model, hardware, engine.build if engine else None)
    grid = make_grid(
        model,
        hardware,
        contexts=contexts_for(_trained_context(model)),
        cache_types=cache_types,
        base=base,
        learned=learned,
        projector=projector,
        program=program,
    )
    bounded = (_bounded(model, cell, hardware, learned, projector, program) for cell in grid.cells)
    return replace(grid, cells=tuple(bounded))


def _trained_context(model: Model) -> int:
    try:
        return max(1, model.hyperparameters.n_ctx_train)
    except ModelError:
        return DEFAULT_CONTEXT  # the plan of every cell says what is wrong with the header


def _bounded(
    model: Model, cell: Cell, hardware: Hardware, learned: Learned, projector: Model | None, program: Program
) -> Cell:
    launch = fit_layers(model, cell.plan.launch, hardware, projector=projector)
    launch = bound_growth(model, launch, hardware, learned=learned, projector=projector)
    if launch == cell.plan.launch:
        return cell
    plan = predict(model, launch, hardware, learned=learned, projector=projector, program=program)
    return replace(cell, plan=plan)


def refined(
    model: Model,
    grid: Grid,
    answerer: Engine | Library,
    *,
    near: Callable[[], Position] = Position,
    cache: DryRunCache | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[Grid]:
    """The grid after every answer, until no figure is the formula's; `near` is the cell to begin with, asked anew
    each time. All answers are one engine's: builds differ.

    Raises EngineError when `MOST_FAILURES` questions had no answer, and Cancelled. A launch that is refused by
    prediction is not asked about.
    """
    planes = _planes(grid)
    failures: list[EngineError] = []
    while (question := _question(planes, grid, near())) is not None:
        if cancelled():
            raise Cancelled
        plane, point = question
        try:
            plane.answers[point] = dry_run(model, plane.plans[point].launch, answerer, cache=cache, cancelled=cancelled)
        except EngineError as error:
            failures.append(error)
            if len(failures) == MOST_FAILURES:
                raise
            plane.forget(point)  # the cell keeps the formula's figures
            continue
        grid = _with_answers(model, grid, plane)
        yield grid


class _Plane:
    """The cells whose launches differ in context and people alone, and what is known of them so far."""

    def __init__(self) -> None:
        self.cells: dict[Point, int] = {}
        """Indices of cells."""
        self.plans: dict[Point, MemoryPlan] = {}
        """What the formula says."""
        self.answers: dict[Point, DryRun] = {}

    def forget(self, point: Point) -> None:
        del self.cells[point], self.plans[point]

    def question(self) -> Point | None:
        """What to ask next so that all is known."""
        return refine(self.plans, self.answers).question if self.plans else None


def _planes(grid: Grid) -> list[_Plane]:
    planes: dict[Launch, _Plane] = {}
    for index, cell in enumerate(grid.cells):
        if not cell.plan.refusal:
            alike = replace(cell.plan.launch, ctx_size=0, parallel=None, cache_ram=0, ctx_checkpoints=0)
            plane = planes.setdefault(alike, _Plane())
            point = Point(cell.users, cell.ctx_per_user)
            plane.cells[point], plane.plans[point] = index, cell.plan
    return list(planes.values())


def _question(planes: list[_Plane], grid: Grid, position: Position) -> tuple[_Plane, Point] | None:
    """The chosen cell comes first, then what belongs to it, then the rest."""
    chosen = grid.at(position)
    point = Point(chosen.users, chosen.ctx_per_user)
    for plane in sorted(planes, key=lambda plane: not _holds(plane, point, grid, chosen)):
        if _holds(plane, point, grid, chosen) and point not in plane.answers:
            return plane, point
        if (question := plane.question()) is not None:
            return plane, question
    return None


def _holds(plane: _Plane, point: Point, grid: Grid, chosen: Cell) -> bool:
    return point in plane.cells and grid.cells[plane.cells[point]] is chosen


def _with_answers(model: Model, grid: Grid, plane: _Plane) -> Grid:
    """The grid with everything that this plane's answers tell."""
    told = refine(plane.plans, plane.answers).between
    sources: dict[Point, Source] = {**dict.fromkeys(told, "interpolated"), **dict.fromkeys(plane.answers, "dry run")}
    cells = list(grid.cells)
    for point, source in sources.items():
        index = plane.cells[point]
        if cells[index].source != "dry run":
            answer = plane.answers.get(point) or told[point]
            cells[index] = replace(cells[index], plan=compare(model, plane.plans[point], answer).plan, source=source)
    return replace(grid, cells=tuple(cells))
