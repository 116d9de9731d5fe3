"""Real runs, each made once and looked at by many tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from measured_run import Run

from planner import Launch, Model
from planner.engine.find import Engine
from planner.measure import Progress, measure


@pytest.fixture(scope="session")
def run(engine: Engine) -> Callable[[Model, Launch], Run]:
    """Measures a launch, the first time that it is asked for."""
    runs: dict[tuple[str, Launch], Run] = {}

    def measured(model: Model, launch: Launch) -> Run:
        key = (str(model.path), launch)
        if key not in runs:
            progress: list[Progress] = []
            measurement = measure(model, launch, engine, on_progress=progress.append, ready_timeout_s=300)
            runs[key] = Run(model, launch, measurement, tuple(progress))
        return runs[key]

    return measured
