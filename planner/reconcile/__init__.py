"""Prediction against measurement: deltas, causes, and what was learned.

Nothing is imported here: `planner plan` reads the record and needs no engine for it.
"""

from __future__ import annotations
