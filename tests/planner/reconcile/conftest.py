"""Plans and measurements of Gemma."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from made_runs import measured_as_planned

from planner import Hardware, Launch, MemoryPlan, Model, predict
from planner.measure import Measurement

Measure = Callable[..., Measurement]


@pytest.fixture
def hardware() -> Hardware:
    """A machine with 16 GiB."""
    return Hardware.simulate(ram=16 << 30)


@pytest.fixture
def plan(gemma: Model, hardware: Hardware) -> MemoryPlan:
    """Gemma for two people."""
    return predict(gemma, Launch.for_users(2, 2048), hardware, prompt_tokens=600)


@pytest.fixture
def measured() -> Measure:
    """Makes the measurement of a plan that came true; `log` and `resident_bytes` say what did not."""
    return measured_as_planned
