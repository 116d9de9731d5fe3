"""Stand-ins for everything that the app does not compute: machine, engine, models, clock, measurement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from made_runs import measured_as_planned, sample
from textual.pilot import Pilot

from planner import Hardware, Launch, Model, predict
from planner.campaign import Campaign
from planner.engine.arguments import server_arguments
from planner.engine.dry_run import Library
from planner.engine.find import Engine
from planner.engine.process import Cancelled
from planner.errors import EngineError
from planner.measure import Progress, Speed
from planner.model.catalogue import CatalogueEntry, find_entry
from planner.model.gguf import GgufHeader
from planner.model.ghost import ghost_tensors
from planner.reconcile.reconciliation import reconcile
from planner.reconcile.record import Record
from planner.tui.app import PlannerApp, make_app
from planner.tui.choices import Choice, ghost_choices
from planner.tui.grid import GridView
from planner.tui.screen import MainScreen
from planner.units import GIB, MIB

MACHINE = Hardware.simulate(ram=2 * GIB)
SMOLLM2 = find_entry("smollm2-135m")
GEMMA3 = find_entry("gemma-3-270m")
FLAGS = """--model --ctx-size --parallel --kv-unified --no-kv-unified --cache-type-k --cache-type-v --flash-attn
--batch-size --ubatch-size --cache-ram --ctx-checkpoints --device""".split()
ENGINE = Engine(
    path=Path("/opt/llama.cpp/llama-server"), source="path", version="b11434 (1a2b3c4d)", flags=frozenset(FLAGS)
)
DAMAGED = Choice(
    name="half-a-download.gguf", model=None, problem="half-a-download.gguf is cut off: 12 bytes are missing."
)
PATIENCE_S = 60.0


def file_of(entry: CatalogueEntry, name: str) -> Choice:
    """A row that looks like a real file of the entry's model."""
    header = GgufHeader(version=3, metadata=entry.metadata(), tensors=ghost_tensors(entry), alignment=32, data_offset=0)
    return Choice(name=name, model=Model(path=Path("/models") / name, header=header))


FILES = (file_of(SMOLLM2, "SmolLM2-135M-Q8_0.gguf"), file_of(GEMMA3, "gemma-3-270m-Q8_0.gguf"), DAMAGED)


def tiny_entry() -> CatalogueEntry:
    """A model that a busy machine still serves in a moment; one row of contexts."""
    shape = msgspec.structs.replace(
        SMOLLM2.hyperparameters,
        block_count=2,
        context_length=512,
        embedding_length=64,
        feed_forward_length=64,
        attention_head_count=2,
        attention_head_count_kv=1,
        rope_dimension_count=32,
    )
    return msgspec.structs.replace(SMOLLM2, title="Tiny", name="tiny", hyperparameters=shape, vocabulary_size=2048)


@contextmanager
def nobody(_engine: Engine | None) -> Iterator[Engine | Library]:
    """Nobody makes dry runs, so that grids stay the formula's."""
    raise EngineError("Neither a llama-server with --fit nor llama-cpp-python is here.")
    yield


def no_engine() -> Engine:
    raise EngineError("No llama-server is found.", "Install llama.cpp.")


def app_of(tmp_path: Path, choices: Sequence[Choice] = FILES, **stand_ins: Any) -> PlannerApp:
    """An app in which nothing is real unless a stand-in makes it so."""
    given: dict[str, Any] = {
        "detect": lambda: MACHINE,
        "find": lambda: ENGINE,
        "choices": lambda: choices,
        "record": Record(tmp_path / "record"),
        "run": never_measured,
        "answerer": nobody,
        "clock": lambda: 100.0,
        **stand_ins,
    }
    return make_app(**given)


def app_without_anything(tmp_path: Path) -> PlannerApp:
    """No model on this machine, and no engine."""
    return app_of(tmp_path, tuple(ghost_choices()), find=no_engine)


# Measurements ---------------------------------------------------------------------------------------------


def never_measured(*_arguments: object, **_settings: object) -> Campaign:
    raise AssertionError("nothing was to be measured")


def stuck_measurement(
    _model: Model,
    _launches: Sequence[Launch],
    _engine: Engine,
    _record: Record | None,
    *,
    on_progress: Callable[[int, Progress], None],
    cancelled: Callable[[], bool],
    detect: Callable[[], Hardware],
) -> Campaign:
    """A measurement that gets half through and then waits to be cancelled."""
    on_progress(0, Progress(phase="loading"))
    on_progress(0, Progress(phase="everyone", done=1, total=2, resident_bytes=480 * MIB))
    while not cancelled():
        time.sleep(0.01)
    raise Cancelled


def quick_measurement(
    model: Model, launches: Sequence[Launch], engine: Engine, _record: Record | None, **_settings: object
) -> Campaign:
    """A run that agrees with its prediction but for the process itself."""
    (launch,) = launches
    plan = predict(model, launch, MACHINE, prompt_tokens=600)
    weights = plan.resident_bytes(component="weights")
    held = replace(
        sample(plan.resident_bytes() - 20 * MIB),
        anonymous_bytes=plan.resident_bytes() - weights - 30 * MIB,
        file_bytes=weights + 10 * MIB,
        peak_bytes=plan.resident_bytes(),
    )
    speed = Speed(
        users=launch.slots,
        prompt_tokens=600,
        generated_tokens=32,
        prompt_tokens_per_s=812.0,
        generated_tokens_per_s=61.4,
        first_token_s=1.5,
    )
    measurement = measured_as_planned(
        plan,
        ghost=model.is_ghost,
        command=(str(engine.path), *server_arguments(launch, model.path, engine.flags)),
        engine_version=engine.version,
        engine_build=engine.build,
        ready=held,
        steady=held,
        after=held,
        samples=(held,),
        everyone=speed,
        one=speed,
    )
    return Campaign(runs=(reconcile(plan, measurement),), not_run=(), failed=(), recommendation=None)


# Waiting --------------------------------------------------------------------------------------------------


async def until(pilot: Pilot[None], happened: Callable[[], bool]) -> None:
    """Wait for something that a thread brings about."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)
        await pilot.pause()
    await pilot.pause()


def main_screen(pilot: Pilot[None]) -> MainScreen:
    screen = pilot.app.screen_stack[0]
    assert isinstance(screen, MainScreen)
    return screen


def grid_view(pilot: Pilot[None]) -> GridView:
    return main_screen(pilot).query_one(GridView)


async def settled(pilot: Pilot[None]) -> None:
    """Wait until machine, engine and models are found and the grid is there."""
    await until(pilot, lambda: any(view.grid.cells for view in main_screen(pilot).query(GridView)))
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


def words(pilot: Pilot[None], selector: str) -> str:
    """The text that a part of the main screen shows."""
    return str(main_screen(pilot).query_one(selector).render())
