"""`dry_run`: llama.cpp's own accounting of a launch, nothing allocated, whoever is there to ask.

Two ways behind one interface: any llama-server (`dry_run_server.py`, about half a second each, whole MiB), and
the embedded library (`dry_run_library.py`, milliseconds each once the model is open, 0.01 MiB).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from planner.engine.dry_figures import DryFigure, DryRun
from planner.engine.dry_run_cache import DryRunCache, answer_key, default_path
from planner.engine.dry_run_library import Library, library_is_here
from planner.engine.dry_run_server import server_dry_run
from planner.engine.find import Engine
from planner.engine.known import marks
from planner.engine.library import AnyEngine
from planner.launch import Launch
from planner.model.model import Model

__all__ = ["DryFigure", "DryRun", "DryRunCache", "Library", "dry_run", "library_is_here", "who_answers"]


@lru_cache(maxsize=1)
def _shared_cache(path: Path) -> DryRunCache:
    return DryRunCache(path)


def dry_run(
    model: Model,
    launch: Launch,
    engine: Engine | Library,
    *,
    cache: DryRunCache | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> DryRun:
    """What llama.cpp would reserve for this launch. A question that was answered before starts nothing.

    A model that is only a header is asked about as the whole: the file's hole takes no disk. Raises EngineError
    where llama.cpp gives no answer; that it refuses the launch is an answer.
    """
    cache = cache or _shared_cache(default_path())
    key = _key(model, launch, engine)
    known = cache.get(key) if key else None
    if known is not None:
        return known
    if isinstance(engine, Library):
        answer = engine.dry_run(model, launch)
    else:
        answer = server_dry_run(model, launch, engine, cancelled=cancelled)
    if key:
        cache.put(key, answer)
    return answer


@contextmanager
def who_answers(engine: AnyEngine | None) -> Iterator[Engine | Library]:
    """The engine at hand, and the library where there is none: each is exact of its own build."""
    if isinstance(engine, Engine):
        yield engine
        return
    with Library() as library:
        yield library


def _key(model: Model, launch: Launch, engine: Engine | Library) -> str:
    """What the answer is kept under; empty where it depends on the moment: llama.cpp splits a model over several
    devices by their free memory. Or on another file, a projector.
    """
    if launch.mmproj is not None:
        return ""
    if isinstance(engine, Library):
        return answer_key(model, f"{engine.build} {engine.identity}", launch)
    if len(engine.devices) > 1 and launch.split_mode != "none" and not launch.tensor_split:
        return ""
    devices = " ".join(f"{device.name} {device.total_bytes}" for device in engine.devices)
    of_file = " ".join(map(str, marks(engine.path.stat()).values()))
    return answer_key(model, f"{engine.build} {of_file} {devices}", launch)
