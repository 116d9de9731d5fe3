"""planner: what llama-server will hold, predicted, measured and reconciled.

`planner.__all__` is the promise that is kept between versions.
"""

from __future__ import annotations

from planner.errors import PlannerError
from planner.hardware import Hardware
from planner.launch import Launch
from planner.memory import MemoryPlan, Verdict, predict
from planner.model import Model

__all__ = ["Hardware", "Launch", "MemoryPlan", "Model", "PlannerError", "Verdict", "predict"]
__version__ = "0.1.0"
