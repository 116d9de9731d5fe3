"""`measure`: start an engine with a launch, put people on it, and record what it holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from planner.engine.faults import EngineFault, FaultKind
from planner.engine.library import AnyEngine
from planner.launch import Launch, ResolvedContext, resolve_context
from planner.measure.accelerators import Accelerators
from planner.measure.guard import Guard, Limits
from planner.measure.measurement import SEED, Measurement, OnProgress, Phase, Progress, Sample, Soak, Speed
from planner.measure.runner import Runner, check_able, runner_of
from planner.measure.soak import Conversations, script_for
from planner.measure.users import Workload, workload_for
from planner.measure.watch import Watcher
from planner.model.model import Model

READY_TIMEOUT_S = 600.0
_SETTLE_S = 0.3
"""A moment for the engine to return what it frees before its memory is read."""
_DEATHS: tuple[FaultKind, ...] = ("instruction", "memory", "killed", "allocation", "crash", "ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What people do with the engine."""

    fill: float | None = None
    """The part of each person's context to fill; None for one ubatch and a little more."""
    soak_minutes: float = 0.0
    """How long conversation follows conversation after the measurement, at most; 0 for none."""
    seed: int = SEED


def measure(
    model: Model,
    launch: Launch,
    engine: AnyEngine,
    *,
    load: Load | None = None,
    limits: Limits | None = None,
    on_progress: OnProgress = lambda _progress: None,
    cancelled: Callable[[], bool] = lambda: False,
    ready_timeout_s: float = READY_TIMEOUT_S,
) -> Measurement:
    """Run `launch` for real: everyone at once on a fresh server, then one person alone, then the soak, if any.

    Everyone comes first, so that what is resident then is what the prediction speaks of: every slot used
    once, nothing yet in the prompt cache. Raises EngineError (the engine died, refused, never got ready, or had
    to be ended for the machine's sake) and Cancelled; in every case the engine has ended when this returns. What it
    cannot be measured with is a UsageError before anything is started.
    """
    load = load or Load()
    check_able(engine, launch, soaked=load.soak_minutes > 0)
    context = resolve_context(launch, model.hyperparameters.n_ctx_train)
    workload = workload_for(context, n_ctx_train=model.hyperparameters.n_ctx_train, fill=load.fill)
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    start = time.monotonic()
    on_progress(Progress(phase="starting"))
    limits = limits or Limits()
    guard = Guard(limits)
    with (
        Accelerators(limits.devices) as accelerators,
        runner_of(engine, model, launch, ready_timeout_s=ready_timeout_s, cancelled=cancelled) as runner,
        Watcher(runner, guard, accelerators) as watcher,
    ):
        run = _Run(runner, watcher, on_progress, workload, load)
        run.report("loading")
        runner.wait_ready(lambda: run.report("loading"))
        load_seconds = time.monotonic() - start
        run.report("ready")
        watcher.follow()
        ready = watcher.take()
        everyone = run.serve(context.n_seq_max, "everyone", "steady", load.seed)
        log_at_steady = runner.quiet_log(_SETTLE_S)
        steady = watcher.take()
        one = run.serve_one(everyone)
        after = run.rest()
        soaked = run.soak(context, after) if load.soak_minutes else None
        run.report("stopping")
    return Measurement(
        launch=launch,
        command=runner.command,
        ghost=model.is_ghost,
        stands_for=model.stands_for,
        engine_version=engine.version,
        engine_build=engine.build,
        engine_backends=engine.backends,
        started_at=started_at,
        load_seconds=load_seconds,
        log=log_at_steady,
        ready=ready,
        steady=steady,
        after=after,
        samples=watcher.samples,
        everyone=everyone,
        one=one,
        log_text=runner.log_text,
        seed=load.seed,
        fill=load.fill,
        soak=soaked,
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """An engine at work, and who hears of it."""

    runner: Runner
    watcher: Watcher
    on_progress: OnProgress
    workload: Workload
    load: Load

    def report(self, phase: Phase, done: int = 0, total: int = 0) -> None:
        """Say where the run is."""
        self.watcher.enter(phase)
        self.on_progress(Progress(phase=phase, done=done, total=total, resident_bytes=self.watcher.resident_bytes))

    def serve(self, users: int, filling: Phase, answering: Phase, seed: int) -> Speed:
        """Serve people; the phase is `filling`, their prompts being made included, until all of them are answered."""
        self.report(filling, 0, users)
        with _prompts_named(users, self.workload):
            return self.runner.serve(
                users,
                self.workload,
                seed,
                lambda begun, done: self.report(answering if begun else filling, done, users),
            )

    def serve_one(self, everyone: Speed) -> Speed:
        """The speed of a single person; where nobody else was there, everyone's."""
        if everyone.users == 1:
            return everyone
        return self.serve(1, "one", "one", self.load.seed + everyone.users)

    def rest(self) -> Sample:
        """What the engine holds when nobody asks anything."""
        self.report("idle")
        self.runner.pause(_SETTLE_S)
        return self.watcher.take()

    def soak(self, context: ResolvedContext, before: Sample) -> Soak:
        """Conversation after conversation."""
        self.report("soak")
        return self.runner.soak(
            Conversations(
                users=context.n_seq_max,
                script=script_for(self.workload, context),
                seed=self.load.seed + context.n_seq_max + 1,
                minutes=self.load.soak_minutes,
                before=before,
                take=self.watcher.take,
                on_conversation=lambda done: self.report("soak", done),
            )
        )


@contextmanager
def _prompts_named(users: int, workload: Workload) -> Iterator[None]:
    """Add to an engine's death what it died of: a first long prompt uses memory and code that loading did not."""
    try:
        yield
    except EngineFault as fault:
        if fault.kind not in _DEATHS:
            raise
        whose = "one prompt" if users == 1 else f"the prompts of {users} people"
        message = f"{fault.message} It had loaded well, and was given {whose} of {workload.prompt_tokens} tokens."
        raise EngineFault(message, fault.hint, kind=fault.kind) from None
