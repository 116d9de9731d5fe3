"""The app where llama-cpp-python stands in for a llama-server."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from stand_ins import app_of, main_screen, settled, tiny_entry, until, words

from planner import Hardware
from planner.campaign import run_campaign
from planner.engine.dry_run import library_is_here, who_answers
from planner.engine.library import identify_library
from planner.reconcile.record import Record
from planner.tui.app import PlannerApp
from planner.tui.choices import Choice, file_choice, ghost_model
from planner.tui.grid import GridView
from planner.tui.panels import StatusLine

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("engine"),
    pytest.mark.skipif(not library_is_here(), reason="llama-cpp-python is not installed"),
]


def library_app(tmp_path: Path, *choices: Choice) -> PlannerApp:
    entry = tiny_entry()
    return app_of(
        tmp_path,
        choices or (Choice(name=entry.title, model=ghost_model(entry), entry=entry),),
        find=lambda: replace(identify_library(), instead_of="No llama-server is found."),
        run=run_campaign,
        detect=Hardware.detect,
        clock=time.monotonic,
        answerer=who_answers,
    )


async def test_m_measures_through_the_library(tmp_path: Path) -> None:
    async with library_app(tmp_path).run_test(size=(120, 36)) as pilot:
        await settled(pilot)
        assert "llama-cpp-python 0." in words(pilot, "#header")
        assert "no llama-server" in words(pilot, "#header")
        view = main_screen(pilot).query_one(GridView)
        assert all(cell.plan.growth_bytes() == 0 for cell in view.grid.cells)
        await pilot.press("left", "m")
        breakdown = main_screen(pilot).query_one("#breakdown")
        await until(pilot, lambda: str(breakdown.border_title).startswith("Ghost measured"))
        await settled(pilot)
        assert all("learned" in [a.certainty for a in cell.plan.allocations] for cell in view.grid.cells)
    (run,) = Record(tmp_path / "record").history().runs
    assert run.engine.startswith("llama-cpp-python ")


async def test_c_says_why_there_is_no_command(tmp_path: Path, smollm_path: Path) -> None:
    async with library_app(tmp_path, file_choice(smollm_path)).run_test() as pilot:
        await settled(pilot)
        await pilot.press("c")
        status = main_screen(pilot).query_one(StatusLine)
        await until(pilot, lambda: status.display)
        assert "There is no llama-server here" in str(status.render())
