"""The grid: contexts x users x cache types, each with its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.hardware import Hardware
from planner.launch import CacheType, Launch
from planner.memory import MemoryPlan, predict
from planner.model import Model

USERS = (1, 2, 3, 4, 5, 8)
"""People at once in the columns of a grid: a household, and a little more."""
MAIN_CACHE_TYPES: tuple[CacheType, ...] = ("f16", "q8_0", "q4_0")
"""The cache types that people choose between, best quality first."""
SMALLEST_CONTEXT = 2048
LONGEST_LADDER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One launch of the grid."""

    ctx_per_user: int
    users: int
    cache_type: CacheType
    plan: MemoryPlan


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
    overhead_bytes: int | None = None,
) -> tuple[Cell, ...]:
    """Every combination, cache types slowest, then contexts, then users; growth is not bounded."""
    return tuple(
        Cell(
            ctx_per_user=context,
            users=count,
            cache_type=cache_type,
            plan=predict(
                model,
                Launch.for_users(count, context, cache_type=cache_type),
                hardware,
                overhead_bytes=overhead_bytes,
            ),
        )
        for cache_type in cache_types
        for context in contexts
        for count in users
    )
