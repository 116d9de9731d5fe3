"""What is to be measured: every combination of what was asked for, by name, so that it can go on after a cut.

Shared by the command line, the app and the grids, as is the machine that all of them plan for.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from planner.engine.library import AnyEngine, look_again
from planner.errors import EngineError, UsageError
from planner.fit import bound_growth, fit_layers
from planner.hardware import Hardware
from planner.launch import CacheType, Launch
from planner.measure import Load
from planner.model import Model
from planner.model.fingerprint import fingerprint
from planner.reconcile.record import Record

DEFAULT_USERS = 2
DEFAULT_CONTEXT = 8192
MOST_CELLS = 1000
"""More would take days to measure, and long to plan before the first."""

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """One launch on one engine: what a sweep is made of."""

    launch: Launch
    engine: AnyEngine
    name: str
    """What was asked for, in words: by it a sweep that was cut off knows what it has done. The launch itself does
    not serve, since what may grow is bounded by the memory of the moment."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Cells that are measured one after the other, under one name in the record."""

    id: str
    ended: Mapping[str, Document] = field(default_factory=dict)
    """Reports of the cells that are in the record already, by the cell's name."""


def machine_of(engine: AnyEngine, detect: Callable[[], Hardware] | None = None) -> Hardware:
    """This machine as it is now, with what the engine's devices have free now; one without any is not asked again."""
    if engine.devices:
        with contextlib.suppress(EngineError):  # the run will tell
            engine = look_again(engine)
    return seen_by(engine, (detect or Hardware.detect)())


def seen_by(engine: AnyEngine, hardware: Hardware) -> Hardware:
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


def cells_for(
    model: Model,
    hardware: Hardware,
    engines: Sequence[AnyEngine],
    *,
    users: Sequence[int],
    contexts: Sequence[int],
    cache_types: Sequence[CacheType],
    unified: bool = False,
) -> tuple[Cell, ...]:
    """Every combination, engine by engine, from few people and short contexts to many and long; what asks the same
    as one before it, by an engine's other name or a context that is rounded to the same, is left out.

    Raises UsageError where they are too many.
    """
    count = math.prod(len(set(choice)) for choice in (engines, users, contexts, cache_types))
    if count > MOST_CELLS:
        raise UsageError(f"These are {count:,} measurements; ask for {MOST_CELLS:,} at most at once.")
    cells: dict[tuple[Launch, Path, str], Cell] = {}
    for engine, people, context in itertools.product(engines, users, contexts):
        seen = seen_by(engine, hardware)
        for launch in launches_for(
            model, seen, users=people, ctx_per_user=context, unified=unified, cache_types=cache_types
        ):
            name = _cell_name(launch.cache_type_k, people, context, engine, unified=unified)
            able = engine.launch(launch)
            cells.setdefault((able, engine.path.resolve(), engine.build), Cell(able, engine, name))
    return tuple(cells.values())


def _cell_name(cache_type: CacheType, users: int, context: int, engine: AnyEngine, *, unified: bool) -> str:
    shared = " shared" if unified else ""
    return f"{cache_type}, {users} x {context}{shared}, {engine.build} ({engine.path})"


def begin_sweep(model: Model, cells: Sequence[Cell], load: Load, record: Record | None, *, resume: bool) -> Sweep:
    """A sweep of these cells; with `resume` the last one that asked the same, with what it has measured."""
    asked = json.dumps([fingerprint(model), sorted(cell.name for cell in cells), asdict(load)])
    prefix = hashlib.sha256(asked.encode()).hexdigest()[:12]
    kept = [
        document
        for document in (record.runs() if record is not None and resume else ())
        if _sweep_id(document).startswith(prefix)
    ]
    if not kept:
        return Sweep(f"{prefix}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
    last = _sweep_id(kept[-1])
    return Sweep(last, {document["sweep"]["cell"]: document for document in kept if _sweep_id(document) == last})


def _sweep_id(document: Document) -> str:
    sweep = document.get("sweep")
    return str(sweep.get("id", "")) if isinstance(sweep, dict) else ""
