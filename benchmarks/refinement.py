"""What it takes to make a grid of 10 contexts x 5 numbers of people x 3 cache types llama.cpp's own.

python -m benchmarks.refinement
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks._support import model_files, print_table
from planner import Hardware, Model
from planner.engine.dry_figures import DryRun
from planner.engine.dry_run import DryRunCache, Library, dry_run, library_is_here
from planner.engine.find import Engine, find_engine
from planner.fit import Grid, make_grid
from planner.grids import refined
from planner.memory import MemoryPlan

CONTEXTS = tuple(256 << step for step in range(10))
USERS = (1, 2, 3, 5, 8)


def main() -> None:
    """Print the table."""
    engine = find_engine()
    rows = []
    for name, path in model_files().items():
        model = Model.open(path)
        rows.append((name, "llama-server", *_row(model, engine)))
        if library_is_here():
            with Library() as library:
                rows.append((name, "llama-cpp-python", *_row(model, library)))
    print_table(("grid of", "way", "cells", "asked", "first cell", "all", "contradicted when asked"), rows)


def _row(model: Model, answerer: Engine | Library) -> tuple[str, ...]:
    hardware = Hardware.detect()
    grid = make_grid(model, hardware, contexts=CONTEXTS, users=USERS)
    with tempfile.TemporaryDirectory() as folder:
        cache = DryRunCache(Path(folder) / "answers.jsonl")
        start = time.perf_counter()
        first = 0.0
        for more in refined(model, grid, answerer, cache=cache):
            grid, first = more, first or time.perf_counter() - start
        took = time.perf_counter() - start
        wrong = _contradicted(model, grid, answerer, cache)
    between = grid.count("interpolated")
    return (
        str(len(grid.cells)),
        str(grid.count("dry run")),
        f"{first:.2f} s",
        f"{took:.1f} s",
        f"{wrong} of {between}",
    )


def _contradicted(model: Model, grid: Grid, answerer: Engine | Library, cache: DryRunCache) -> int:
    """How many cells that lie between llama.cpp's figures have other compute buffers when they are asked about."""
    between = [cell.plan for cell in grid.cells if cell.source == "interpolated"]
    return sum(not _agree(plan, dry_run(model, plan.launch, answerer, cache=cache)) for plan in between)


def _agree(plan: MemoryPlan, told: DryRun) -> bool:
    for figure in told.figures:
        if figure.components == ("compute",):
            buffers = [a for a in plan.allocations if (a.device, a.component) == (figure.device, "compute")]
            low = sum(a.low_bytes or a.reserved_bytes for a in buffers)
            high = sum(a.high_bytes or a.reserved_bytes for a in buffers)
            if figure.high_bytes < low or figure.low_bytes > high:
                return False
    return not told.refusal


if __name__ == "__main__":
    main()
