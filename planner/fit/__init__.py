"""Which launches fit: the grid, the bound on growth, the recommendation."""

from __future__ import annotations

from planner.fit.grid import (
    DIVIDED,
    EMPTY_GRID,
    MAIN_CACHE_TYPES,
    USERS,
    Cell,
    Grid,
    Position,
    Source,
    contexts_for,
    make_grid,
)
from planner.fit.growth import bound_growth
from planner.fit.offload import fit_layers
from planner.fit.recommend import Candidate, Recommendation, recommend

__all__ = [
    "DIVIDED",
    "EMPTY_GRID",
    "MAIN_CACHE_TYPES",
    "USERS",
    "Candidate",
    "Cell",
    "Grid",
    "Position",
    "Recommendation",
    "Source",
    "bound_growth",
    "contexts_for",
    "fit_layers",
    "make_grid",
    "recommend",
]
