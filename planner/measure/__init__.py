"""A real run under real load: start, people, watching, recording."""

from __future__ import annotations

from planner.measure.guard import Limits
from planner.measure.measurement import STAGES, Measurement, Phase, PhaseMemory, Progress, Sample, Soak, Speed
from planner.measure.run import Load, measure

__all__ = [
    "STAGES",
    "Limits",
    "Load",
    "Measurement",
    "Phase",
    "PhaseMemory",
    "Progress",
    "Sample",
    "Soak",
    "Speed",
    "measure",
]
