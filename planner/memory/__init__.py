"""What a run will hold: pure functions from a model, a launch and a machine to a `MemoryPlan`."""

from __future__ import annotations

from planner.memory.plan import Allocation, Component, DevicePlan, MemoryPlan, Verdict
from planner.memory.predict import predict

__all__ = ["Allocation", "Component", "DevicePlan", "MemoryPlan", "Verdict", "predict"]
