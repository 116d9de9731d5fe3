"""Whether an engine works on this machine at all: it loads a tiny model and decodes one token, once.

A build may start, list its devices, load a model and still die at the first token, of an instruction that this
processor does not have. That it worked is kept (`known.py`) as long as its files are the same.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from planner.engine.arguments import server_arguments
from planner.engine.faults import EngineFault
from planner.engine.find import Engine
from planner.engine.known import default_path, look_up
from planner.engine.library import AnyEngine
from planner.engine.library_run import LibraryRun
from planner.engine.server import LlamaServer
from planner.engine.smoke_model import write_smoke_model
from planner.errors import EngineError
from planner.launch import Launch

SMOKE_TIMEOUT_S = 120.0
"""A driver may build its kernels at the first start."""
_ANSWER_TIMEOUT_S = 120.0
_PROMPT = [5, 6, 7]
_LAUNCH = Launch(ctx_size=256, parallel=1, cache_ram=0, ctx_checkpoints=0, ubatch_size=32, batch_size=32)
_MODEL_NAME = "smoke-test-model"
"""Not called a GGUF file, which it is, so that nobody takes it for a model to use."""


def smoke_test(
    engine: AnyEngine,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    ready_timeout_s: float = SMOKE_TIMEOUT_S,
    kept: Path | None = None,
) -> None:
    """Raise EngineError where the engine cannot decode a token here. One that could before starts nothing.

    `kept` is where that is remembered, a file in the person's cache by default.
    """
    kept = kept or default_path()
    try:
        known = look_up(engine.path, kept)
    except OSError as error:
        raise EngineError(
            f"The engine {engine.path} is gone ({error.strerror}).", "Put it back, or name another one."
        ) from None
    if known.facts.get("works") is True:
        return
    with _folder(kept.parent) as folder:
        own = write_smoke_model(folder / f"{_MODEL_NAME}.{os.getpid()}")
        model = own.replace(folder / _MODEL_NAME)  # whole, whoever else writes it now
        try:
            if isinstance(engine, Engine):
                _try_server(engine, model, ready_timeout_s, cancelled)
            else:
                with LibraryRun(model, _LAUNCH, ready_timeout_s=ready_timeout_s, cancelled=cancelled) as library:
                    library.wait_ready()
                    library.generate([_PROMPT], 1)
        except EngineFault as fault:
            message = f"{fault.message} That was with a tiny model: {engine.path} does not work on this machine."
            raise EngineFault(message, fault.hint, kind=fault.kind) from None
    known.add(works=True)


def _try_server(engine: Engine, model: Path, ready_timeout_s: float, cancelled: Callable[[], bool]) -> None:
    command = [str(engine.path), *server_arguments(_LAUNCH, model, engine.flags)]
    request = {"prompt": _PROMPT, "n_predict": 1, "ignore_eos": True, "return_tokens": True}
    with LlamaServer(command, ready_timeout_s=ready_timeout_s, cancelled=cancelled) as server:
        server.wait_ready()
        answer = server.post("/completion", request, timeout_s=_ANSWER_TIMEOUT_S)
        if not answer.get("tokens"):
            server.check_alive()
            raise EngineFault("llama-server answered without a token.", kind="answer")


@contextlib.contextmanager
def _folder(cache: Path) -> Iterator[Path]:
    """Where the model lies: in the cache, to be found there again, or in a temporary folder."""
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
    if os.access(cache, os.W_OK):
        yield cache
        return
    with tempfile.TemporaryDirectory(prefix="planner-", ignore_cleanup_errors=True) as path:
        yield Path(path)
