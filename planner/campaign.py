"""The main job: several launches of one model, each predicted, measured, reconciled and kept.

Shared by the command line and the app, so that both do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from planner.engine.dry_run import DryRun, dry_run
from planner.engine.find import Engine
from planner.errors import DoesNotFitError, EngineError
from planner.export.command import shell_command
from planner.export.documents import run_document
from planner.fit import Candidate, Recommendation, bound_growth, fit_layers, recommend
from planner.hardware import CPU_DEVICE, Hardware
from planner.launch import CacheType, Launch, resolve_context
from planner.measure import Progress, measure
from planner.measure.run import READY_TIMEOUT_S
from planner.measure.users import workload_for
from planner.memory import NOTHING_LEARNED, MemoryPlan, Verdict, predict
from planner.model import Model
from planner.reconcile.reconciliation import Reconciliation, reconcile
from planner.reconcile.record import Record

DEFAULT_USERS = 2
DEFAULT_CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class Failure:
    """A launch that was started and came to nothing."""

    launch: Launch
    error: EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What came of it."""

    runs: tuple[Reconciliation, ...]
    not_run: tuple[MemoryPlan, ...]
    """Launches that were predicted not to fit, so that nothing was started."""
    failed: tuple[Failure, ...]
    """Launches whose engine died, refused or hung, while another one ran."""
    recommendation: Recommendation | None

    @property
    def recommended_command(self) -> str | None:
        """The measured command of the recommended launch, quoted for a shell."""
        if self.recommendation is None:
            return None
        run = next(run for run in self.runs if run.measurement.launch == self.recommendation.launch)
        measurement = run.measurement
        return shell_command(measurement.command, ghost=measurement.ghost, stands_for=measurement.stands_for)


def machine_of(engine: Engine) -> Hardware:
    """This machine as it is now, with the devices that the engine saw when it was looked at."""
    return seen_by(engine, Hardware.detect())


def seen_by(engine: Engine, hardware: Hardware) -> Hardware:
    """The machine with the devices that this engine can use."""
    return hardware.with_accelerators(engine.devices)


def launches_for(
    model: Model,
    hardware: Hardware,
    *,
    users: int,
    ctx_per_user: int,
    unified: bool = False,
    cache_types: Sequence[CacheType],
) -> tuple[Launch, ...]:
    """One launch per cache type, alike in everything else: as many layers on accelerators as the largest cache
    leaves room for, and growth bounded by what it leaves free.
    """
    base = Launch.for_users(users, ctx_per_user, unified=unified, cache_type=cache_types[0])
    base = bound_growth(model, fit_layers(model, base, hardware), hardware)
    return tuple(base.with_cache_type(cache_type) for cache_type in cache_types)


def check_fits(plans: Sequence[MemoryPlan]) -> None:
    """Raise DoesNotFitError when not one of these launches can be started."""
    if any(plan.verdict in (Verdict.FITS, Verdict.TIGHT) for plan in plans):
        return
    # One that is merely too big says more than one that llama.cpp would refuse.
    least = min(plans, key=lambda plan: (plan.verdict is not Verdict.TOO_BIG, plan.bytes()))
    if least.verdict is Verdict.UNKNOWN:
        raise DoesNotFitError(
            f"Nothing was started, since it is not known whether it fits: {least.verdict_reason}",
            "If you know that it does, override with --force.",
        )
    raise DoesNotFitError(
        f"Nothing was started, since no launch fits: {least.verdict_reason}",
        "Ask for less context or fewer people, take a smaller model, or override with --force."
        if least.verdict is Verdict.TOO_BIG
        else "",
    )


def run_campaign(
    model: Model,
    launches: Sequence[Launch],
    engine: Engine,
    record: Record | None,
    *,
    force: bool = False,
    on_progress: Callable[[int, Progress], None] = lambda _index, _progress: None,
    on_run: Callable[[Reconciliation], None] = lambda _run: None,
    cancelled: Callable[[], bool] = lambda: False,
    ready_timeout_s: float = READY_TIMEOUT_S,
    detect: Callable[[], Hardware] | None = None,
) -> Campaign:
    """Measure every launch that fits, one after the other, and recommend one of them.

    Memory is looked at anew before each, and an engine that fails with one launch is still tried with the
    next. Raises DoesNotFitError before anything is started when none fits, PlannerError when the record cannot
    be written, and the first EngineError when every launch failed; runs that had ended by then are in the
    record.
    """
    detect = detect or partial(machine_of, engine)
    if not force:
        check_fits([_plan(model, launch, detect(), engine, record) for launch in launches])
    if record is not None:
        record.check_writable()
    runs: list[Reconciliation] = []
    not_run: list[MemoryPlan] = []
    failed: list[Failure] = []
    for index, launch in enumerate(launches):
        plan = _plan(model, launch, detect(), engine, record)
        if plan.verdict not in (Verdict.FITS, Verdict.TIGHT) and not force:
            not_run.append(plan)
            continue

        def report(progress: Progress, index: int = index) -> None:
            on_progress(index, progress)

        told = _told(model, launch, engine, cancelled)
        try:
            measurement = measure(
                model,
                launch,
                engine,
                on_progress=report,
                cancelled=cancelled,
                ready_timeout_s=ready_timeout_s,
            )
        except EngineError as error:
            failed.append(Failure(launch, error))
            continue
        run = reconcile(plan, measurement, told)
        if record is not None:
            record.append(model, run, run_document(run))
        runs.append(run)
        on_run(run)
    if failed and not runs:
        raise failed[0].error
    candidates = [*map(_candidate, runs), *map(_unmeasured, not_run)]
    return Campaign(
        runs=tuple(runs),
        not_run=tuple(not_run),
        failed=tuple(failed),
        recommendation=recommend(candidates),
    )


def _plan(model: Model, launch: Launch, hardware: Hardware, engine: Engine, record: Record | None) -> MemoryPlan:
    prompt_tokens = None
    if model.rules is not None:
        context = resolve_context(launch, model.hyperparameters.n_ctx_train)
        prompt_tokens = workload_for(context).prompt_tokens
    learned = NOTHING_LEARNED if record is None else record.learned(model, hardware, engine.build)
    return predict(model, launch, hardware, learned=learned, prompt_tokens=prompt_tokens)


def _told(model: Model, launch: Launch, engine: Engine, cancelled: Callable[[], bool]) -> DryRun | None:
    """What the engine says of the launch before it runs; None where it makes no dry run. It is a help, no condition."""
    try:
        return dry_run(model, launch, engine, cancelled=cancelled)
    except EngineError:
        return None


def _unmeasured(plan: MemoryPlan) -> Candidate:
    return Candidate(launch=plan.launch, plan=plan, resident_bytes=plan.resident_bytes(device=CPU_DEVICE))


def _candidate(run: Reconciliation) -> Candidate:
    measured = run.measurement.steady.resident_bytes
    return Candidate(
        launch=run.measurement.launch,
        plan=run.plan,
        resident_bytes=run.plan.resident_bytes(device=CPU_DEVICE) if measured is None else measured,
        generated_tokens_per_s=run.measurement.everyone.generated_tokens_per_s,
    )
