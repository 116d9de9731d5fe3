"""A real run under real load: start, people, watching, recording."""

from __future__ import annotations

from planner.measure.measurement import Measurement, Phase, Progress, Sample, Speed
from planner.measure.run import measure

__all__ = ["Measurement", "Phase", "Progress", "Sample", "Speed", "measure"]
