"""Dry runs per second: by a llama-server, one process each, and by the library, which keeps the model open.

python -m benchmarks.dry_runs
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks._support import model_files, print_table
from benchmarks.predictions import random_launches
from planner import Launch, Model
from planner.engine.dry_run import DryRun, DryRunCache, Library, dry_run, library_is_here
from planner.engine.find import Engine, find_engine

SERVER_COUNT = 10
LIBRARY_COUNT = 300


def main() -> None:
    """Print the table."""
    engine = find_engine()
    rows = []
    for name, path in model_files().items():
        model = Model.open(path)
        rows.append((name, *_server_row(model, engine)))
        if library_is_here():
            rows.append((name, *_library_row(model)))
        rows.append((name, *_cache_row(model, engine)))
    print_table(("dry runs of", "way", "first", "each", "per second"), rows)


def _server_row(model: Model, engine: Engine) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as folder:
        cache = DryRunCache(Path(folder) / "answers.jsonl")
        return ("llama-server", *_timed(lambda launch: dry_run(model, launch, engine, cache=cache), SERVER_COUNT))


def _library_row(model: Model) -> tuple[str, ...]:
    with Library() as library:
        return ("llama-cpp-python", *_timed(lambda launch: library.dry_run(model, launch), LIBRARY_COUNT))


def _cache_row(model: Model, engine: Engine) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answers.jsonl"
        launch = Launch(ctx_size=4096, parallel=1)
        dry_run(model, launch, engine, cache=DryRunCache(path))
        cache = DryRunCache(path)
        return (
            "asked before",
            *_times(lambda _: dry_run(model, launch, engine, cache=cache), [launch] * LIBRARY_COUNT),
        )


def _timed(ask: Callable[[Launch], DryRun], count: int) -> tuple[str, ...]:
    return _times(ask, random_launches(count + 1))


def _times(ask: Callable[[Launch], DryRun], launches: Sequence[Launch]) -> tuple[str, ...]:
    """The first answer apart, which starts the process and opens the model."""
    start = time.perf_counter()
    ask(launches[0])
    first = time.perf_counter() - start
    start = time.perf_counter()
    for launch in launches[1:]:
        ask(launch)
    each = (time.perf_counter() - start) / (len(launches) - 1)
    return (f"{first * 1000:,.0f} ms", f"{each * 1000:,.2f} ms", f"{1 / each:,.1f}")


if __name__ == "__main__":
    main()
