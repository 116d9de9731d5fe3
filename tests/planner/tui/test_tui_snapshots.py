"""Pictures of the app at two sizes: a change to one is looked at before it is accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stand_ins import (
    app_of,
    app_without_anything,
    main_screen,
    quick_measurement,
    settled,
    stuck_measurement,
    until,
)
from textual.pilot import Pilot

from planner import Hardware
from planner.tui.panels import StatusLine
from planner.units import MIB

SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 36)], ids=["80x24", "120x36"])
Compare = Callable[..., bool]


@SIZES
def test_main_screen(tmp_path: Path, snap_compare: Compare, size: tuple[int, int]) -> None:
    async def with_verdicts(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.press("shift+tab", "down")
        await until(pilot, lambda: "gemma" in _highlighted(pilot))
        await settled(pilot)
        await pilot.press("tab")

    app = app_of(tmp_path, detect=lambda: Hardware.simulate(ram=680 * MIB))
    assert snap_compare(app, terminal_size=size, run_before=with_verdicts)


@SIZES
def test_no_model_and_no_engine(tmp_path: Path, snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(app_without_anything(tmp_path), terminal_size=size, run_before=settled)


@SIZES
def test_measuring(tmp_path: Path, snap_compare: Compare, size: tuple[int, int]) -> None:
    async def half_through(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.press("m")
        await until(pilot, lambda: "1/2" in str(main_screen(pilot).query_one(StatusLine).render()))

    app = app_of(tmp_path, run=stuck_measurement)
    assert snap_compare(app, terminal_size=size, run_before=half_through)


@SIZES
def test_result(tmp_path: Path, snap_compare: Compare, size: tuple[int, int]) -> None:
    async def to_the_end(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.press("m")
        breakdown = main_screen(pilot).query_one("#breakdown")
        await until(pilot, lambda: str(breakdown.border_title).startswith("Measured"))
        await settled(pilot)
        await pilot.press("tab", "end")
        await pilot.pause()

    app = app_of(tmp_path, run=quick_measurement)
    assert snap_compare(app, terminal_size=size, run_before=to_the_end)


@pytest.mark.parametrize("key", ["question_mark", "c"])
def test_dialogs(tmp_path: Path, snap_compare: Compare, key: str) -> None:
    async def opened(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.press(key)
        await until(pilot, lambda: len(pilot.app.screen_stack) == 2)

    assert snap_compare(app_of(tmp_path), terminal_size=(80, 24), run_before=opened)


def _highlighted(pilot: Pilot[None]) -> str:
    models: Any = main_screen(pilot).query_one("#models")
    return str(models.get_option_at_index(models.highlighted).prompt)
