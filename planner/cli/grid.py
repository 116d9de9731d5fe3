"""`planner plan MODEL --grid`: contexts x people x cache types, by formula or in llama.cpp's own figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from planner.cli.dry_run import find_answerer, machine_asked, only_on
from planner.cli.progress import LiveLine
from planner.cli.render import labelled, model_line, render_table
from planner.engine.dry_run import who_answers
from planner.engine.find import Engine
from planner.errors import EngineError, UsageError
from planner.export.documents import grid_document
from planner.fit import MAIN_CACHE_TYPES, Grid
from planner.grids import plan_grid, refined
from planner.hardware import Hardware
from planner.launch import CacheType, Launch
from planner.memory import Verdict
from planner.model import Model
from planner.reconcile.record import Record, default_folder
from planner.units import format_tokens

_VARIED = ("context", "users", "ctx_size", "parallel")


def check_free(options: dict[str, Any]) -> None:
    """Raise UsageError where the options fix what a grid goes over."""
    for name in _VARIED:
        if options.get(name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"--grid goes over contexts and people itself, so {option} has no place in it.")


def print_grid(
    model: Model,
    launch: Launch,
    hardware: Hardware,
    engine: Path | None,
    *,
    here: bool,
    asked: bool,
    as_json: bool,
    projector: Model | None = None,
) -> int:
    """Plan every cell, ask llama.cpp where that was wanted, print; the exit code."""
    answerer = find_answerer(engine) if asked else None
    if asked:
        hardware = machine_asked(answerer, hardware) if here else hardware
        launch = only_on(hardware, launch, answerer)
    grid = plan_grid(
        model,
        hardware,
        None,
        Record(default_folder()),
        base=launch,
        cache_types=_cache_types(launch),
        projector=projector,
    )
    if asked:
        grid = _refine(model, grid, answerer)
    if as_json:
        click.echo(json.dumps(grid_document(model, hardware, grid), indent=2, allow_nan=False))
    else:
        click.echo(_render(model, grid))
    fits = any(cell.plan.verdict in (Verdict.FITS, Verdict.TIGHT, Verdict.UNKNOWN) for cell in grid.cells)
    return 0 if fits else 3


def _cache_types(launch: Launch) -> tuple[CacheType, ...]:
    """The usual three, or the one that was asked for."""
    if launch.cache_type_k != launch.cache_type_v:
        raise UsageError("A grid's cells have one type for keys and values.", "Use --cache-type TYPE.")
    return MAIN_CACHE_TYPES if launch.cache_type_k == "f16" else (launch.cache_type_k,)


def _refine(model: Model, grid: Grid, engine: Engine | None) -> Grid:
    line = LiveLine()
    try:
        with who_answers(engine) as answerer:
            for more in refined(model, grid, answerer):
                grid = more
                line.show(f"{grid.count('formula')} of {len(grid.cells)} cells still by formula")
    except EngineError as error:
        click.echo(f"Not every launch could be asked about: {error}", err=True)
    finally:
        line.clear()
    return grid


def _render(model: Model, grid: Grid) -> str:
    parts = [model_line(model), ""]
    per_type = len(grid.contexts) * len(grid.users)
    header = [f"{count} people" if count > 1 else "1 person" for count in grid.users]
    for index, cache_type in enumerate(grid.cache_types):
        cells = grid.cells[index * per_type : (index + 1) * per_type]
        rows = [
            (format_tokens(context), *(cell.short for cell in cells[row * len(grid.users) :][: len(grid.users)]))
            for row, context in enumerate(grid.contexts)
        ]
        parts += [render_table((cache_type, *header), rows, "r" * (1 + len(header))), ""]
    return "\n".join([*parts, *(labelled(label, text) for label, text in _legend(grid))])


def _legend(grid: Grid) -> list[tuple[str, str]]:
    signs = ", ".join(f"{verdict.sign} {verdict.value.replace('_', ' ')}" for verdict in Verdict)
    lines = [("Cells", f"the memory needed at the start, each person having so many tokens: {signs}")]
    if by_formula := grid.count("formula"):
        lines.append(("≈", f"by formula: {by_formula} cells (--dry-run asks llama.cpp)"))
    if between := grid.count("interpolated"):
        lines.append(("·", f"between llama.cpp's own figures: {between} cells"))
    if own := grid.count("dry run"):
        lines.append(("no mark", f"llama.cpp's own figures: {own} cells"))
    for verdict in (Verdict.REFUSED, Verdict.UNKNOWN):
        why = dict.fromkeys(cell.plan.verdict_reason for cell in grid.cells if cell.plan.verdict is verdict)
        lines += [(verdict.sign, reason) for reason in why]
    return lines
