"""Plans and measurements of Gemma, and what a campaign needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engines import write_engine
from made_runs import measured_as_planned

from planner import Hardware, Launch, MemoryPlan, Model, campaign, predict
from planner.engine.find import Engine, identify
from planner.fit import MAIN_CACHE_TYPES
from planner.measure import Measurement, Progress
from planner.reconcile.record import Record
from planner.sweeps import Cell, cells_for, launches_for

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


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """A server that leaves a trace when it is started, and dies."""
    serve = f"echo started >>{tmp_path}/trace; echo 'error: no memory'; exit 1"
    return identify(write_engine(tmp_path / "llama-server", serve=serve), "option")


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "record")


@pytest.fixture
def launches(gemma: Model, hardware: Hardware) -> tuple[Launch, ...]:
    return launches_for(gemma, hardware, users=2, ctx_per_user=32768, cache_types=MAIN_CACHE_TYPES)


@pytest.fixture
def came_true(
    gemma: Model, hardware: Hardware, measured: Callable[..., Measurement], monkeypatch: pytest.MonkeyPatch
) -> list[Launch]:
    """Replaces every run by one that comes true; the launches that were run."""
    run: list[Launch] = []

    def measure(_model: Model, launch: Launch, _engine: Engine, **options: object) -> Measurement:
        run.append(launch)
        options["on_progress"](Progress(phase="starting"))  # type: ignore[operator]
        return measured(predict(gemma, launch, hardware))

    monkeypatch.setattr(campaign, "measure", measure)
    monkeypatch.setattr(campaign, "smoke_test", lambda *_args, **_options: None)
    return run


@pytest.fixture
def cells(gemma: Model, hardware: Hardware, engine: Engine) -> tuple[Cell, ...]:
    """One and two people with two contexts and two types, on two engines."""
    other = replace(engine, version="1 (0abc999)")
    return cells_for(gemma, hardware, [engine, other], users=[1, 2], contexts=[512, 4096], cache_types=["f16", "q8_0"])
