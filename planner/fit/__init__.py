"""Which launches fit: the grid, the bound on growth, the recommendation."""

from __future__ import annotations

from planner.fit.grid import MAIN_CACHE_TYPES, USERS, Cell, contexts_for, make_grid
from planner.fit.growth import bound_growth
from planner.fit.offload import fit_layers
from planner.fit.recommend import Candidate, Recommendation, recommend

__all__ = [
    "MAIN_CACHE_TYPES",
    "USERS",
    "Candidate",
    "Cell",
    "Recommendation",
    "bound_growth",
    "contexts_for",
    "fit_layers",
    "make_grid",
    "recommend",
]
