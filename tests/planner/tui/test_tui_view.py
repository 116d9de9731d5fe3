"""The grid as values: moving, finding, drawing, clicking."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_ins import FILES, MACHINE

from planner import Hardware, Verdict
from planner.fit import USERS, Grid, Position
from planner.grids import plan_grid
from planner.reconcile.record import Record
from planner.tui.view import CELL_WIDTH, LABEL_WIDTH, grid_lines, position_at
from planner.units import GIB, MIB


def grid_on(machine: Hardware, tmp_path: Path) -> Grid:
    model = FILES[0].model
    assert model is not None
    return plan_grid(model, machine, None, Record(tmp_path))


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return grid_on(MACHINE, tmp_path)


def test_every_position_holds_its_own_cell(grid: Grid) -> None:
    for cache_type in range(3):
        for row, context in enumerate(grid.contexts):
            for column, users in enumerate(USERS):
                cell = grid.at(Position(cache_type, row, column))
                assert (cell.cache_type, cell.ctx_per_user, cell.users) == (
                    grid.cache_types[cache_type],
                    context,
                    users,
                )


def test_right_of_the_last_column_is_the_next_cache_type(grid: Grid) -> None:
    assert grid.moved(Position(0, 1, 5), columns=1) == Position(1, 1, 0)
    assert grid.moved(Position(1, 1, 0), columns=-1) == Position(0, 1, 5)


def test_moving_stops_at_the_edges(grid: Grid) -> None:
    assert grid.moved(Position(0, 0, 0), rows=-1, columns=-1) == Position(0, 0, 0)
    last = Position(2, len(grid.contexts) - 1, 5)
    assert grid.moved(last, rows=1, columns=1) == last


def test_nearest_takes_the_largest_context_that_is_not_above(grid: Grid) -> None:
    assert grid.contexts == (2048, 4096, 8192)
    assert grid.nearest("q8_0", 100_000, 3) == Position(1, 2, 2)
    assert grid.nearest("f16", 5000, 1) == Position(0, 1, 0)
    assert grid.nearest("f16", 1, 1) == Position(0, 0, 0)


@pytest.mark.parametrize("wide", [False, True])
def test_a_click_on_a_drawn_cell_finds_that_cell(grid: Grid, wide: bool) -> None:
    start = Position(1, 0, 0)
    lines = ["".join(span.text for span in line) for line in grid_lines(grid, start, wide=wide)]
    for y, line in enumerate(lines):
        for x in range(len(line)):
            place = position_at(grid, start, x, y, wide=wide)
            if place is not None:
                drawn = grid_lines(grid, place, wide=wide)[y]
                before = 0
                for span in drawn:
                    if before <= x < before + len(span.text):
                        assert span.kind.startswith("selected")
                    before += len(span.text)
    assert position_at(grid, start, LABEL_WIDTH - 1, 2, wide=wide) is None
    assert position_at(grid, start, LABEL_WIDTH, 1, wide=wide) is None
    assert position_at(grid, start, 500, 2, wide=wide) is None


def test_lines_fit_their_terminals(grid: Grid) -> None:
    narrow, wide = (
        max(len("".join(span.text for span in line)) for line in grid_lines(grid, Position(), wide=choice))
        for choice in (False, True)
    )
    assert narrow <= LABEL_WIDTH + CELL_WIDTH * len(USERS)
    assert wide <= 118


def test_verdicts_are_told_by_sign_as_well_as_by_kind(tmp_path: Path) -> None:
    grid = grid_on(Hardware.simulate(ram=600 * MIB), tmp_path)
    signs = {"fits": "✓", "tight": "~", "too_big": "✗"}
    seen = set()
    for line in grid_lines(grid, Position(), wide=True)[2:]:
        for span in line:
            kind = span.kind.removeprefix("selected ")
            if kind in signs:
                assert span.text.endswith(signs[kind])
                seen.add(kind)
    assert seen == set(signs)


def test_growth_is_bounded_as_it_is_for_a_measurement(tmp_path: Path) -> None:
    """llama-server's own 8 GiB of prompt cache would make every cell of a small machine tight."""
    cell = grid_on(Hardware.simulate(ram=2 * GIB), tmp_path).at(Position())
    assert cell.plan.verdict is Verdict.FITS
    assert 0 < cell.plan.launch.cache_ram < 2048
