"""`measure`: start llama-server with a launch, put people on it, and record what it holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from planner.engine.arguments import server_arguments
from planner.engine.find import Engine
from planner.engine.server import LlamaServer
from planner.launch import Launch, resolve_context
from planner.measure.measurement import Measurement, OnProgress, Phase, Progress
from planner.measure.users import serve, workload_for
from planner.measure.watch import Watcher
from planner.model.model import Model

READY_TIMEOUT_S = 600.0
_SEED = 20_240_915
_SETTLE_S = 0.3
"""A moment for the server to return what it frees before its memory is read."""


def measure(
    model: Model,
    launch: Launch,
    engine: Engine,
    *,
    on_progress: OnProgress = lambda _progress: None,
    cancelled: Callable[[], bool] = lambda: False,
    ready_timeout_s: float = READY_TIMEOUT_S,
) -> Measurement:
    """Run `launch` for real: everyone at once on a fresh server, then one person alone.

    Everyone comes first, so that what is resident then is what the prediction speaks of: every slot used
    once, nothing yet in the prompt cache. Raises EngineError (the engine died, refused, never got ready) and
    Cancelled; in every case the server has ended when this returns.
    """
    command = (str(engine.path), *server_arguments(launch, model.path.absolute(), engine.flags))
    context = resolve_context(launch, model.hyperparameters.n_ctx_train)
    workload = workload_for(context)
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    start = time.monotonic()
    on_progress(Progress(phase="starting"))
    with (
        LlamaServer(command, ready_timeout_s=ready_timeout_s, cancelled=cancelled) as server,
        Watcher(server.pid) as watcher,
    ):

        def report(phase: Phase, done: int = 0, total: int = 0) -> None:
            watcher.phase = phase
            on_progress(Progress(phase=phase, done=done, total=total, resident_bytes=watcher.resident_bytes))

        report("loading")
        server.wait_ready(lambda: report("loading"))
        load_seconds = time.monotonic() - start
        report("ready")
        ready = watcher.take()
        users = context.n_seq_max
        everyone = serve(server, users, workload, _SEED, lambda done: report("everyone", done, users))
        log_at_steady = server.quiet_log(_SETTLE_S)
        steady = watcher.take()
        one = everyone
        if users > 1:
            one = serve(server, 1, workload, _SEED + users, lambda done: report("one", done, 1))
            server.pause(_SETTLE_S)
        after = watcher.take()
        report("stopping")
    return Measurement(
        launch=launch,
        command=command,
        ghost=model.is_ghost,
        stands_for=model.stands_for,
        engine_version=engine.version,
        engine_build=engine.build,
        started_at=started_at,
        load_seconds=load_seconds,
        log=log_at_steady,
        ready=ready,
        steady=steady,
        after=after,
        samples=watcher.samples,
        everyone=everyone,
        one=one,
        log_text=server.log_text,
    )
