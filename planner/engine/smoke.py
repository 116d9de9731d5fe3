"""Whether an engine works on this machine at all: it loads a tiny model and decodes one token, once.

A build may start, list its devices, load a model and still die at the first token, of an instruction that this
processor does not have. That it worked is kept in the person's cache, under its path, size and time (of the library:
of all its files).
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from planner.engine.arguments import server_arguments
from planner.engine.faults import EngineFault
from planner.engine.find import Engine
from planner.engine.library import AnyEngine
from planner.engine.library_run import LibraryRun
from planner.engine.server import LlamaServer
from planner.engine.smoke_model import write_smoke_model
from planner.launch import Launch

SMOKE_TIMEOUT_S = 120.0
"""A driver may build its kernels at the first start."""
_ANSWER_TIMEOUT_S = 120.0
_PROMPT = [5, 6, 7]
_LAUNCH = Launch(ctx_size=256, parallel=1, cache_ram=0, ctx_checkpoints=0, ubatch_size=32, batch_size=32)
_VERSION = 1
_MODEL_NAME = "smoke-test-model"
"""Not called a GGUF file, which it is, so that nobody takes it for a model to use."""


def default_path() -> Path:
    """The file in the person's cache that names the engines that worked."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("planner", appauthor=False)) / "engines.jsonl"


def smoke_test(
    engine: AnyEngine,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    ready_timeout_s: float = SMOKE_TIMEOUT_S,
    kept: Path | None = None,
) -> None:
    """Raise EngineError where the engine cannot decode a token here. One that could before starts nothing.

    `kept` is where that is remembered; a file that cannot be read or written only costs time.
    """
    kept = kept or default_path()
    key = _key(engine)
    if _worked_before(kept, key):
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
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with kept.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps(key)}\n")  # after whatever a killed program left unfinished


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


def _key(engine: AnyEngine) -> dict[str, object]:
    key = {"version": _VERSION, "machine": platform.node(), "path": str(engine.path)}
    if not isinstance(engine, Engine):
        return {**key, "identity": engine.identity}
    status = engine.path.stat()
    return {**key, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _worked_before(kept: Path, key: dict[str, object]) -> bool:
    try:
        lines = kept.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        with contextlib.suppress(ValueError):
            if json.loads(line) == key:
                return True
    return False
