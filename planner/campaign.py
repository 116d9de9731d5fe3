"""The main job: several launches of one model, each predicted, measured, reconciled and kept.

Shared by the command line and the app, so that both do the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from planner.engine.dry_run import DryRun, dry_run, who_answers
from planner.engine.library import AnyEngine
from planner.engine.smoke import SMOKE_TIMEOUT_S, smoke_test
from planner.errors import DoesNotFitError, EngineError, PlannerError, words_of
from planner.export.documents import command_of, run_document
from planner.fit import Candidate, Recommendation, recommend
from planner.hardware import CPU_DEVICE, Hardware
from planner.launch import Launch, resolve_context
from planner.measure import Limits, Load, Progress, measure
from planner.measure.accelerators import watched_devices
from planner.measure.alone import alone
from planner.measure.growth import hold_growth
from planner.measure.guard import DEADLINE_S, floor_of
from planner.measure.run import READY_TIMEOUT_S
from planner.measure.users import workload_for
from planner.memory import NOTHING_LEARNED, MemoryPlan, Verdict, predict
from planner.model import Model
from planner.reconcile.reconciliation import Reconciliation, reconcile
from planner.reconcile.record import Record
from planner.sweeps import Cell, Document, Sweep, machine_of


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell that came to nothing: its engine died, refused or hung, or its program or its model is gone."""

    cell: Cell
    error: PlannerError


@dataclass(frozen=True, slots=True)
class NotRun:
    """A cell that is predicted not to fit, so that nothing was started."""

    cell: Cell
    plan: MemoryPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What came of it."""

    runs: tuple[Reconciliation, ...]
    not_run: tuple[NotRun, ...]
    failed: tuple[Failure, ...]
    """What came to nothing while something else was measured."""
    recommendation: Recommendation | None
    comparable: bool = True
    """Whether one could be recommended: all serve the same people but for the cache type."""
    documents: tuple[Document, ...] = ()
    """The report of every cell that was measured, in this call or before the sweep was cut off."""
    cells: tuple[Cell, ...] = ()
    """All that was asked for."""

    @property
    def recommended_command(self) -> str | None:
        """The measured command of the recommended launch, quoted for a shell; None where none ran."""
        if self.recommendation is None:
            return None
        launch = self.recommendation.launch
        for measurement in (run.measurement for run in self.runs):
            if measurement.launch == launch:
                return command_of(measurement)
        command: str | None = next(d["command"] for d in self.documents if _is_of(d, launch))
        return command


def may_start(plan: MemoryPlan) -> bool:
    """Whether a launch is predicted to leave every pool what a run must leave alone."""
    if plan.verdict not in (Verdict.FITS, Verdict.TIGHT):
        return False
    return all((plan.headroom_bytes(pool) or 0) >= floor_of(pool) for pool in plan.used_pools)


def check_fits(plans: Sequence[MemoryPlan]) -> None:
    """Raise DoesNotFitError when not one of these launches can be started."""
    if any(may_start(plan) for plan in plans):
        return
    # One that is merely too big says more than one that llama.cpp would refuse.
    too_big = (Verdict.TOO_BIG, Verdict.TIGHT)
    least = min(plans, key=lambda plan: (plan.verdict not in too_big, plan.bytes()))
    if least.verdict is Verdict.UNKNOWN:
        raise DoesNotFitError(
            f"Nothing was started, since it is not known whether it fits: {least.verdict_reason}",
            "If you know that it does, override with --force.",
        )
    raise DoesNotFitError(
        f"Nothing was started, since no launch fits: {least.verdict_reason}",
        "Ask for less context or fewer people, take a smaller model, or override with --force."
        if least.verdict in too_big
        else "",
    )


def run_campaign(
    model: Model,
    launches: Sequence[Launch],
    engine: AnyEngine,
    record: Record | None,
    **options: Any,
) -> Campaign:
    """Measure launches on one engine: `run_cells` without a sweep that could go on."""
    cells = [Cell(engine.launch(launch), engine, str(index)) for index, launch in enumerate(launches)]
    return run_cells(model, cells, record, **options)


def run_cells(
    model: Model,
    cells: Sequence[Cell],
    record: Record | None,
    *,
    sweep: Sweep | None = None,
    load: Load | None = None,
    deadline_s: float = DEADLINE_S,
    force: bool = False,
    on_progress: Callable[[int, Progress], None] = lambda _index, _progress: None,
    on_run: Callable[[Reconciliation], None] = lambda _run: None,
    cancelled: Callable[[], bool] = lambda: False,
    ready_timeout_s: float = READY_TIMEOUT_S,
    detect: Callable[[], Hardware] | None = None,
) -> Campaign:
    """Measure every cell that fits, one after the other, and recommend one of them.

    Memory is looked at anew before each. One that fails, by its engine or because a file is gone, does not keep the
    next from being tried; each result is on disk before the next one starts, and cells that `sweep` has done are not
    done again.
    Raises DoesNotFitError before anything is started when none fits and none was measured before, PlannerError when
    the record cannot be written, and the first cell's error when every one failed.
    """
    sweep = sweep or Sweep("")
    load = load or Load()
    job = _Job(
        model=model,
        record=record,
        load=load,
        deadline_s=deadline_s,
        ready_timeout_s=ready_timeout_s,
        detect=detect,
        on_progress=on_progress,
        cancelled=cancelled,
    )
    left = [(index, cell) for index, cell in enumerate(cells) if cell.name not in sweep.ended]
    if left and not sweep.ended and not force:
        check_fits(job.plans([cell for _, cell in left]))
    if record is not None:
        record.check_writable()
    came = _Came(documents=dict(sweep.ended))
    with contextlib.nullcontext() if record is None else alone(record.folder):
        for index, cell in left:
            match job.attempt(index, cell, force=force):
                case NotRun() as left_out:
                    came.not_run.append(left_out)
                case Failure() as failure:
                    came.failed.append(failure)
                case run:
                    document = job.document(run, sweep, cell)
                    if record is not None:
                        record.append(model, run, document)
                    came.documents[cell.name] = document
                    came.runs.append(run)
                    on_run(run)
    if came.failed and not came.documents:
        raise came.failed[0].error
    ended = [cell for cell in cells if cell.name in sweep.ended]
    earlier = [_told_candidate(plan, sweep.ended[c.name]) for c, plan in zip(ended, job.plans(ended), strict=True)]
    return came.to_campaign(cells, earlier)


@dataclass(slots=True, kw_only=True)
class _Came:
    """What comes of the cells, one after the other."""

    documents: dict[str, Document]
    runs: list[Reconciliation] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)

    def to_campaign(self, cells: Sequence[Cell], earlier: Sequence[Candidate]) -> Campaign:
        """The whole, with one of them recommended where they can be compared."""
        candidates = [*earlier, *map(_candidate, self.runs), *(_not_started(left.plan) for left in self.not_run)]
        comparable = _comparable(cells)
        return Campaign(
            runs=tuple(self.runs),
            not_run=tuple(self.not_run),
            failed=tuple(self.failed),
            recommendation=recommend(candidates) if comparable else None,
            comparable=comparable,
            documents=tuple(self.documents[cell.name] for cell in cells if cell.name in self.documents),
            cells=tuple(cells),
        )


def _comparable(cells: Sequence[Cell]) -> bool:
    """Whether the cells serve the same people equally well but for the cache type."""
    alike = {
        (replace(cell.launch.with_cache_type("f16"), cache_ram=0, ctx_checkpoints=0), cell.engine) for cell in cells
    }
    return len(alike) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What is the same for every cell."""

    model: Model
    record: Record | None
    load: Load
    deadline_s: float
    ready_timeout_s: float
    detect: Callable[[], Hardware] | None
    on_progress: Callable[[int, Progress], None]
    cancelled: Callable[[], bool]

    def plan(self, cell: Cell) -> MemoryPlan:
        """The prediction for this moment, with what earlier runs taught."""
        return self.plans([cell])[0]

    def plans(self, cells: Sequence[Cell]) -> list[MemoryPlan]:
        """The predictions for one moment: the machine is looked at once for each engine."""
        machines = {engine: (self.detect or partial(machine_of, engine))() for engine in {c.engine for c in cells}}
        return [self._predict(cell, machines[cell.engine]) for cell in cells]

    def _predict(self, cell: Cell, hardware: Hardware) -> MemoryPlan:
        prompt_tokens = None
        if self.model.rules is not None:
            n_ctx_train = self.model.hyperparameters.n_ctx_train
            context = resolve_context(cell.launch, n_ctx_train)
            prompt_tokens = workload_for(context, n_ctx_train=n_ctx_train, fill=self.load.fill).prompt_tokens
        learned = NOTHING_LEARNED
        if self.record is not None:
            learned = self.record.learned(self.model, hardware, cell.engine.build)
        return predict(
            self.model,
            cell.launch,
            hardware,
            learned=learned,
            prompt_tokens=prompt_tokens,
            program=cell.engine.program,
        )

    def attempt(self, index: int, cell: Cell, *, force: bool) -> Reconciliation | NotRun | Failure:
        """Plan a cell and measure it, where it fits or is forced. Raises Cancelled."""
        try:
            self.model.check_same_files()
            plan = self.plan(cell)
            return self.run(index, cell, plan) if force or may_start(plan) else NotRun(cell, plan)
        except PlannerError as error:
            return Failure(cell, error)
        except OSError as error:
            return Failure(cell, EngineError(words_of(error)))

    def run(self, index: int, cell: Cell, plan: MemoryPlan) -> Reconciliation:
        """Measure a cell and hold it against its prediction. Raises PlannerError, OSError and Cancelled; also where
        its model is not the file any more that the prediction is of.
        """
        smoke_timeout_s = min(self.ready_timeout_s, SMOKE_TIMEOUT_S)
        smoke_test(cell.engine, cancelled=self.cancelled, ready_timeout_s=smoke_timeout_s)
        told = self.told(cell)
        measurement = measure(
            self.model,
            cell.launch,
            cell.engine,
            load=self.load,
            limits=Limits(
                floor_bytes=floor_of(plan.hardware.host),
                devices=watched_devices(plan),
                deadline_s=self.deadline_s + 60 * self.load.soak_minutes,
            ),
            on_progress=partial(self.on_progress, index),
            cancelled=self.cancelled,
            ready_timeout_s=self.ready_timeout_s,
        )
        self.model.check_same_files()
        return reconcile(plan, measurement, told)

    def told(self, cell: Cell) -> DryRun | None:
        """What the engine says of the launch before it runs; None where it makes no dry run. A help, no condition."""
        try:
            with who_answers(cell.engine) as answerer:
                return dry_run(self.model, cell.launch, answerer, cancelled=self.cancelled)
        except (PlannerError, OSError):
            return None

    def document(self, run: Reconciliation, sweep: Sweep, cell: Cell) -> Document:
        """The report that is kept: the run, its place in the sweep, and its growth held against the prediction."""
        growth = hold_growth(run.plan, self.model, run.measurement)
        return {
            **run_document(run),
            **({} if growth is None else {"growth": asdict(growth)}),
            **({"sweep": {"id": sweep.id, "cell": cell.name}} if sweep.id else {}),
        }


def _not_started(plan: MemoryPlan) -> Candidate:
    return Candidate(
        launch=plan.launch, plan=plan, resident_bytes=plan.resident_bytes(device=CPU_DEVICE), may_start=False
    )


def _candidate(run: Reconciliation) -> Candidate:
    measured = run.measurement.steady.resident_bytes
    return Candidate(
        launch=run.measurement.launch,
        plan=run.plan,
        resident_bytes=run.plan.resident_bytes(device=CPU_DEVICE) if measured is None else measured,
        generated_tokens_per_s=run.measurement.everyone.generated_tokens_per_s,
        may_start=may_start(run.plan),
    )


def _told_candidate(plan: MemoryPlan, document: Document) -> Candidate:
    """A cell that was measured before the sweep was cut off."""
    measured = document["measured"]
    return Candidate(
        launch=plan.launch,
        plan=plan,
        resident_bytes=measured["steady"]["resident_bytes"] or plan.resident_bytes(device=CPU_DEVICE),
        generated_tokens_per_s=measured["everyone"]["generated_tokens_per_s"],
        may_start=may_start(plan),
    )


def _is_of(document: Document, launch: Launch) -> bool:
    """Whether a report is of this launch; what may grow was bounded by the memory of its moment."""
    told = document["predicted"]["launch"]
    return (told["cache_type_k"], told["ctx_size"]) == (launch.cache_type_k, launch.ctx_size)
