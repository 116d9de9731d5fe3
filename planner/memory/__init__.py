"""What a run will hold: pure functions from a model, a launch and a machine to a `MemoryPlan`."""

from __future__ import annotations

from planner.memory.learned import NOTHING_LEARNED, Learned, LearnedSize
from planner.memory.plan import Allocation, Component, DevicePlan, MemoryPlan, Verdict
from planner.memory.predict import predict

__all__ = [
    "NOTHING_LEARNED",
    "Allocation",
    "Component",
    "DevicePlan",
    "Learned",
    "LearnedSize",
    "MemoryPlan",
    "Verdict",
    "predict",
]
