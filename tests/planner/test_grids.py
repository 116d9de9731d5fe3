"""A grid by formula and then by llama.cpp: real answers, the chosen cell first, faults that cost one cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from planner import Hardware, Model
from planner.engine.dry_run import DryRun, Library
from planner.engine.find import Engine
from planner.engine.process import Cancelled
from planner.errors import EngineError
from planner.fit import Grid, Position
from planner.grids import MOST_FAILURES, plan_grid, refined
from planner.launch import Launch
from planner.reconcile.record import Record
from planner.units import GIB

MACHINE = Hardware.simulate(ram=8 * GIB, cpu_features=Hardware.detect().cpu_features)


@pytest.fixture
def grid(smollm: Model, tmp_path: Path) -> Grid:
    """The formula's grid of a small model."""
    return plan_grid(smollm, MACHINE, None, Record(tmp_path / "record"))


def last(grids: Iterator[Grid]) -> Grid:
    *_, grid = grids
    return grid


@pytest.mark.engine
def test_a_real_server_tells_every_cell_by_a_few_answers(engine: Engine, smollm: Model, grid: Grid) -> None:
    assert grid.count("formula") == len(grid.cells)
    asked = last(refined(smollm, grid, engine))
    assert asked.count("formula") == 0
    assert asked.count("dry run") <= len(grid.cells) / 2
    for before, after in zip(grid.cells, asked.cells, strict=True):
        assert replace(after, plan=before.plan, source="formula") == before
        compute = [a for a in after.plan.allocations if a.component == "compute"]
        assert {a.certainty for a in compute} == {"dry run"}


@pytest.mark.engine
def test_the_chosen_cell_and_its_cache_type_come_first(engine: Engine, smollm: Model, grid: Grid) -> None:
    chosen = Position(cache_type=2, context=1, users=3)
    grids = refined(smollm, grid, engine, near=lambda: chosen)
    first = next(grids)
    assert [cell.source == "dry run" for cell in first.cells].index(True) == grid.cells.index(grid.at(chosen))
    second = next(grids)
    assert {cell.cache_type for cell in second.cells if cell.source != "formula"} == {"q4_0"}
    grids.close()  # type: ignore[attr-defined]


@pytest.mark.engine
def test_it_stops_when_told_to(engine: Engine, smollm: Model, grid: Grid) -> None:
    with pytest.raises(Cancelled):
        last(refined(smollm, grid, engine, cancelled=lambda: True))


class Reluctant(Library):
    """The real library, which has no answer to some questions."""

    def __init__(self, mute: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.mute = mute

    def dry_run(self, model: Model, launch: Launch) -> DryRun:
        if (launch.slots, launch.ctx_size // launch.slots) in self.mute:
            raise EngineError("llama-cpp-python died of SIGABRT.")
        return super().dry_run(model, launch)


def test_a_question_without_an_answer_costs_one_cell(smollm: Model, grid: Grid) -> None:
    with Reluctant(mute=[(1, grid.contexts[0])]) as library:
        asked = last(refined(smollm, replace(grid, cells=grid.cells[:18], cache_types=("f16",)), library))
    left = [(cell.users, cell.ctx_per_user) for cell in asked.cells if cell.source == "formula"]
    assert left == [(1, grid.contexts[0])]


def test_an_engine_that_never_answers_is_not_asked_for_ever(smollm: Model, grid: Grid) -> None:
    everything = [(cell.users, cell.ctx_per_user) for cell in grid.cells]
    with Reluctant(mute=everything) as library, pytest.raises(EngineError, match="SIGABRT"):
        list(refined(smollm, grid, library))
    assert len(everything) > MOST_FAILURES
