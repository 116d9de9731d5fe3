"""The grid: contexts x users x cache types, each with its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planner.hardware import Hardware
from planner.launch import CONTEXT_MULTIPLE, CacheType, Launch
from planner.memory import NOTHING_LEARNED, Learned, MemoryPlan, Verdict, predict
from planner.memory.program import LLAMA_SERVER, Program
from planner.model import Model
from planner.units import pad, short_bytes

USERS = (1, 2, 3, 4, 5, 8)
"""People at once in the columns of a grid: a household, and a little more."""
MAIN_CACHE_TYPES: tuple[CacheType, ...] = ("f16", "q8_0", "q4_0")
"""The cache types that people choose between, best quality first."""
DIVIDED = Launch(kv_unified=False)
"""What a grid's launches have in common: each person has a cache alone."""
SMALLEST_CONTEXT = 2048
LONGEST_LADDER = 8


Source = Literal["formula", "interpolated", "dry run"]
"""Whose figures a cell has: the formula's, llama.cpp's own, or those that lie between llama.cpp's own."""


_MARKS: dict[Source, str] = {"formula": "≈", "interpolated": "·", "dry run": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One launch of the grid."""

    ctx_per_user: int
    """Tokens of each person."""
    users: int
    cache_type: CacheType
    plan: MemoryPlan
    source: Source = "formula"

    @property
    def mark(self) -> str:
        """What tells the source in one character; llama.cpp's own figures need none."""
        return _MARKS[self.source]

    @property
    def short(self) -> str:
        """The memory needed at the start with its mark and the verdict's sign: `≈271M✓`, at most six characters."""
        known = self.plan.verdict not in (Verdict.REFUSED, Verdict.UNKNOWN)
        return f"{f'{self.mark}{short_bytes(self.plan.bytes())}' if known else ''}{self.plan.verdict.sign}"


@dataclass(frozen=True, slots=True)
class Position:
    """A cell's place: indices of its cache type, context and users."""

    cache_type: int = 0
    context: int = 0
    users: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """All cells of one model, cache types slowest, then contexts, then users."""

    contexts: tuple[int, ...] = ()
    users: tuple[int, ...] = USERS
    cache_types: tuple[CacheType, ...] = MAIN_CACHE_TYPES
    cells: tuple[Cell, ...] = ()

    def at(self, position: Position) -> Cell:
        """The cell at this place."""
        row = position.cache_type * len(self.contexts) + position.context
        return self.cells[row * len(self.users) + position.users]

    def nearest(self, cache_type: CacheType, context: int, users: int) -> Position:
        """The place of these values; of contexts the largest that is not above the one asked for."""
        row = max((i for i, size in enumerate(self.contexts) if size <= context), default=0)
        return Position(self.cache_types.index(cache_type), row, self.users.index(users))

    def moved(self, position: Position, *, rows: int = 0, columns: int = 0) -> Position:
        """The place so many rows down and columns right; the columns of the cache types follow one another."""
        per_type = len(self.users)
        last = len(self.cache_types) * per_type - 1
        column = _clamp(position.cache_type * per_type + position.users + columns, last)
        return Position(column // per_type, _clamp(position.context + rows, len(self.contexts) - 1), column % per_type)

    def with_cache_type(self, position: Position, cache_type: int) -> Position:
        """The same context and users with another cache type."""
        return replace(position, cache_type=_clamp(cache_type, len(self.cache_types) - 1))

    def count(self, source: Source) -> int:
        """How many cells have these figures."""
        return sum(cell.source == source for cell in self.cells)


EMPTY_GRID = Grid()


def _clamp(index: int, last: int) -> int:
    return max(0, min(index, last))


def contexts_for(n_ctx_train: int) -> tuple[int, ...]:
    """Tokens per person in the rows of a grid: powers of two up to what the model was trained on."""
    ladder = [SMALLEST_CONTEXT << step for step in range(20) if SMALLEST_CONTEXT << step < n_ctx_train]
    return (*ladder[-(LONGEST_LADDER - 1) :], n_ctx_train)


def make_grid(
    model: Model,
    hardware: Hardware,
    *,
    contexts: Sequence[int],
    users: Sequence[int] = USERS,
    cache_types: Sequence[CacheType] = MAIN_CACHE_TYPES,
    base: Launch = DIVIDED,
    learned: Learned = NOTHING_LEARNED,
    projector: Model | None = None,
    program: Program = LLAMA_SERVER,
) -> Grid:
    """Every combination; growth is not bounded. `base` says everything else about the launches."""
    cells = (
        Cell(
            ctx_per_user=context,
            users=count,
            cache_type=cache_type,
            plan=predict(
                model,
                replace(
                    base,
                    ctx_size=count * pad(context, CONTEXT_MULTIPLE),
                    parallel=count,
                    cache_type_k=cache_type,
                    cache_type_v=cache_type,
                ),
                hardware,
                learned=learned,
                projector=projector,
                program=program,
            ),
        )
        for cache_type in cache_types
        for context in contexts
        for count in users
    )
    return Grid(contexts=tuple(contexts), users=tuple(users), cache_types=tuple(cache_types), cells=tuple(cells))
