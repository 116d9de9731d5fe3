"""The grid as lines of text: how a cell looks, and where each is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.fit import Cell, Grid, Position
from planner.units import format_tokens

LABEL_WIDTH = 6
CELL_WIDTH = 6
HEADER_LINES = 2
"""Lines above the first row of cells: the cache types and the people."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a drawn line, and what it is, which decides its colour."""

    text: str
    kind: str = "plain"
    """`plain`, `quiet`, `chosen` (the shown cache type), a verdict, or a verdict after `selected `."""


def shown_types(grid: Grid, position: Position, *, wide: bool) -> tuple[int, ...]:
    """The cache types that are drawn: side by side where there is room, else the selected one."""
    return tuple(range(len(grid.cache_types))) if wide else (position.cache_type,)


def grid_lines(grid: Grid, position: Position, *, wide: bool) -> list[list[Span]]:
    """The grid as lines of spans."""
    types = shown_types(grid, position, wide=wide)
    lines = [_type_line(grid, position, wide=wide), _people_line(grid, types)]
    for row, context in enumerate(grid.contexts):
        line = [Span(format_tokens(context).rjust(LABEL_WIDTH))]
        for cache_type in types:
            line += [Span(" ")] * (cache_type != types[0])
            places = (Position(cache_type, row, column) for column in range(len(grid.users)))
            line += [_cell_span(grid.at(place), place == position) for place in places]
        lines.append(line)
    return lines


def _type_line(grid: Grid, position: Position, *, wide: bool) -> list[Span]:
    spans = [Span("cache".rjust(LABEL_WIDTH), "quiet"), *([] if wide else [Span("  ")])]
    width = CELL_WIDTH * len(grid.users)
    for index, name in enumerate(grid.cache_types):
        title = f"{index + 1} {name}"
        text = title.center(width) + " " * (name != grid.cache_types[-1]) if wide else f" {title} "
        spans += [Span(text, "chosen" if index == position.cache_type else "quiet")]
        spans += [] if wide else [Span("  ")]
    return spans


def _people_line(grid: Grid, types: tuple[int, ...]) -> list[Span]:
    people = "".join(str(count).rjust(CELL_WIDTH - 1) + " " for count in grid.users)
    return [Span("people".rjust(LABEL_WIDTH), "quiet"), Span(" ".join(people for _ in types), "quiet")]


def _cell_span(cell: Cell, selected: bool) -> Span:
    verdict = cell.plan.verdict
    text = cell.short.rjust(CELL_WIDTH)
    return Span(text, f"selected {verdict.value}" if selected else verdict.value)


def position_at(grid: Grid, position: Position, x: int, y: int, *, wide: bool) -> Position | None:
    """The place that is drawn at column `x` of line `y`; None beside the cells."""
    row = y - HEADER_LINES
    if not 0 <= row < len(grid.contexts):
        return None
    for cache_type, left in _blocks(grid, shown_types(grid, position, wide=wide)):
        column = (x - left) // CELL_WIDTH
        if 0 <= column < len(grid.users):
            return Position(cache_type, row, column)
    return None


def _blocks(grid: Grid, types: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Each drawn cache type with the column where its cells begin."""
    for number, cache_type in enumerate(types):
        yield cache_type, LABEL_WIDTH + number * (CELL_WIDTH * len(grid.users) + 1)
