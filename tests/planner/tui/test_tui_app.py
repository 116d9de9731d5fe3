"""The app under a person's hands, with nothing real behind it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

from stand_ins import (
    DAMAGED,
    FILES,
    app_of,
    app_without_anything,
    grid_view,
    main_screen,
    quick_measurement,
    settled,
    stuck_measurement,
    until,
    words,
)
from textual.pilot import Pilot

from planner.campaign import Campaign
from planner.engine.find import Engine
from planner.errors import DoesNotFitError
from planner.fit import Position
from planner.tui.dialogs import CommandDialog, HelpDialog
from planner.tui.panels import ModelList, StatusLine


def status(pilot: Pilot[None]) -> str:
    line = main_screen(pilot).query_one(StatusLine)
    return str(line.render()) if line.display else ""


async def test_it_is_drawn_before_anything_is_found(tmp_path: Path) -> None:
    def slow_search() -> Engine:
        time.sleep(0.3)
        raise AssertionError

    async with app_of(tmp_path, find=slow_search).run_test() as pilot:
        assert "looking for a llama-server" in words(pilot, "#header")


async def test_it_opens_at_the_asked_for_cell_of_the_first_model(tmp_path: Path) -> None:
    async with app_of(tmp_path).run_test() as pilot:
        await settled(pilot)
        assert "2.0 GiB memory" in words(pilot, "#header")
        assert "b11434" in words(pilot, "#header")
        assert grid_view(pilot).position == Position(0, 2, 1)
        assert "8,192 tokens" in words(pilot, "#reasons-text")
        assert main_screen(pilot).query_one("#breakdown").border_title == "2 people × 8k, f16"


async def test_arrows_and_digits_choose_the_cell(tmp_path: Path) -> None:
    async with app_of(tmp_path).run_test() as pilot:
        await settled(pilot)
        await pilot.press("up", "left", "left")
        assert grid_view(pilot).position == Position(0, 1, 0)
        await pilot.press("3")
        assert grid_view(pilot).position == Position(2, 1, 0)
        assert main_screen(pilot).query_one("#breakdown").border_title == "1 person × 4k, q4_0"


async def test_a_click_chooses_the_cell(tmp_path: Path) -> None:
    async with app_of(tmp_path).run_test() as pilot:
        await settled(pilot)
        await pilot.click("#grid", offset=(6 + 3 * 6 + 2, 3))
        assert grid_view(pilot).position == Position(0, 1, 3)


async def test_the_chosen_cell_stays_when_the_model_changes(tmp_path: Path) -> None:
    async with app_of(tmp_path).run_test() as pilot:
        await settled(pilot)
        await pilot.press("2", "shift+tab", "down")
        await until(pilot, lambda: len(grid_view(pilot).grid.contexts) == 5)
        assert grid_view(pilot).position == Position(1, 2, 1)


async def test_every_row_of_the_breakdown_gives_its_reason(tmp_path: Path) -> None:
    async with app_of(tmp_path).run_test() as pilot:
        await settled(pilot)
        await pilot.press("tab", "down")
        await pilot.pause()
        assert "KV cache: 30 layers: 8,192 cells x 2 streams" in words(pilot, "#reasons-text")


async def test_a_damaged_file_is_explained(tmp_path: Path) -> None:
    async with app_of(tmp_path).run_test() as pilot:
        await settled(pilot)
        await pilot.press("shift+tab", "end")
        await until(pilot, lambda: "12 bytes are missing" in words(pilot, "#reasons-text"))
        await pilot.press("m", "c")  # neither does anything
        assert status(pilot) == ""


async def test_only_damaged_files_do_not_crash_it(tmp_path: Path) -> None:
    async with app_of(tmp_path, (DAMAGED,)).run_test() as pilot:
        await until(pilot, lambda: "12 bytes are missing" in words(pilot, "#reasons-text"))


async def test_names_with_brackets_are_shown_as_they_are(tmp_path: Path) -> None:
    from stand_ins import SMOLLM2, file_of

    odd = file_of(SMOLLM2, "[red]odd[/] name.gguf")
    async with app_of(tmp_path, (odd,)).run_test() as pilot:
        await settled(pilot)
        option = main_screen(pilot).query_one(ModelList).get_option_at_index(0)
        assert "[red]odd[/] name.gguf" in str(option.prompt)


async def test_without_an_engine_m_and_c_say_why_not(tmp_path: Path) -> None:
    async with app_without_anything(tmp_path).run_test() as pilot:
        await settled(pilot)
        for key in ("m", "c"):
            await pilot.press(key)
            assert status(pilot) == "No llama-server is found. Install llama.cpp."
            await pilot.press("escape")
            assert status(pilot) == ""


async def test_c_copies_the_command_and_shows_it(tmp_path: Path) -> None:
    async with app_of(tmp_path).run_test() as pilot:
        await settled(pilot)
        await pilot.press("c")
        await until(pilot, lambda: isinstance(pilot.app.screen, CommandDialog))
        copied = pilot.app.clipboard
        assert copied.startswith("/opt/llama.cpp/llama-server --model /models/SmolLM2-135M-Q8_0.gguf ")
        assert "--ctx-size 16384 --parallel 2 --no-kv-unified --cache-type-k f16" in copied
        launch = grid_view(pilot).grid.at(grid_view(pilot).position).plan.launch
        assert f"--cache-ram {launch.cache_ram}" in copied
        await pilot.press("escape")
        assert pilot.app.screen is main_screen(pilot)


async def test_c_refuses_a_ghost_in_words(tmp_path: Path) -> None:
    from planner.tui.choices import ghost_choices

    async with app_of(tmp_path, tuple(ghost_choices())).run_test() as pilot:
        await settled(pilot)
        await pilot.press("c")
        await until(pilot, lambda: "is a ghost" in status(pilot))
        assert pilot.app.clipboard == ""


async def test_help_opens_and_closes(tmp_path: Path) -> None:
    async with app_of(tmp_path).run_test() as pilot:
        await settled(pilot)
        await pilot.press("question_mark")
        assert isinstance(pilot.app.screen, HelpDialog)
        await pilot.press("escape")
        assert pilot.app.screen is main_screen(pilot)


async def test_a_measurement_ends_in_its_result_and_back(tmp_path: Path) -> None:
    async with app_of(tmp_path, run=quick_measurement).run_test() as pilot:
        await settled(pilot)
        await pilot.press("m")
        breakdown = main_screen(pilot).query_one("#breakdown")
        await until(pilot, lambda: str(breakdown.border_title).startswith("Measured"))
        assert "812 read and 61.4 written" in words(pilot, "#reasons-text")
        await pilot.press("right")
        assert not str(breakdown.border_title).startswith("Measured")
        await pilot.press("left")
        assert str(breakdown.border_title).startswith("Measured")
        await pilot.press("escape")
        assert breakdown.border_title == "2 people × 8k, f16"


async def test_escape_stops_a_measurement(tmp_path: Path) -> None:
    async with app_of(tmp_path, run=stuck_measurement).run_test() as pilot:
        await settled(pilot)
        await pilot.press("m")
        await until(pilot, lambda: "everyone at once 1/2" in status(pilot))
        assert "480.0 MiB" in status(pilot)
        await pilot.press("m")  # one at a time
        await pilot.press("escape")
        await until(pilot, lambda: "nothing is left running" in status(pilot))


async def test_an_error_is_a_sentence(tmp_path: Path) -> None:
    def refused(*_arguments: object, **_settings: object) -> Campaign:
        raise DoesNotFitError("Nothing was started: 3 GiB are missing.", "Override with --force.")

    async with app_of(tmp_path, run=refused).run_test() as pilot:
        await settled(pilot)
        await pilot.press("m")
        await until(pilot, lambda: status(pilot) == "Nothing was started: 3 GiB are missing. Choose a smaller cell.")


async def test_what_the_system_refuses_is_a_sentence(tmp_path: Path) -> None:
    def full(*_arguments: object, **_settings: object) -> Campaign:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/cache/ghost")

    async with app_of(tmp_path, run=full).run_test() as pilot:
        await settled(pilot)
        await pilot.press("m")
        await until(pilot, lambda: status(pilot) == "No space left on device: /cache/ghost.")


async def test_an_unforeseen_error_is_a_sentence_too(tmp_path: Path) -> None:
    def broken(*_arguments: object, **_settings: object) -> Campaign:
        raise ZeroDivisionError("by nobody")

    async with app_of(tmp_path, run=broken).run_test() as pilot:
        await settled(pilot)
        await pilot.press("m")
        await until(pilot, lambda: "ZeroDivisionError" in status(pilot))
        await pilot.press("escape", "m")  # and the next one may start
        await until(pilot, lambda: "ZeroDivisionError" in status(pilot))


async def test_quitting_cancels_a_measurement(tmp_path: Path) -> None:
    seen: list[Callable[[], bool]] = []

    def kept(*arguments: object, cancelled: Callable[[], bool], **settings: object) -> Campaign:
        seen.append(cancelled)
        return stuck_measurement(*arguments, cancelled=cancelled, **settings)  # type: ignore[arg-type]

    async with app_of(tmp_path, run=kept).run_test() as pilot:
        await settled(pilot)
        await pilot.press("m")
        await until(pilot, lambda: bool(seen))
        await pilot.press("q")
    assert seen[0]()


async def test_a_wide_terminal_shows_the_cache_types_side_by_side(tmp_path: Path) -> None:
    async with app_of(tmp_path, FILES).run_test(size=(120, 36)) as pilot:
        await settled(pilot)
        assert grid_view(pilot).wide
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert not grid_view(pilot).wide


async def test_a_tiny_terminal_does_not_crash_it(tmp_path: Path) -> None:
    async with app_of(tmp_path, FILES).run_test(size=(20, 6)) as pilot:
        await settled(pilot)
        await pilot.press("m", "question_mark", "escape", "q")


_GOES_ON = """
import os, signal, threading
from planner.tui.app import PlannerApp, make_app
async def closes(self): self.exit()
PlannerApp.on_ready = closes
make_app(choices=lambda: ()).run()
os.kill(os.getpid(), signal.SIGCONT)
threading.Event().wait(0.2)
os._exit(any(thread.name == "textual-input" for thread in threading.enumerate()))
"""


def test_a_terminal_that_closes_after_the_app_wakes_nothing() -> None:
    """tmux and login sessions send SIGCONT after SIGHUP; a reader that it starts would never end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-c", _GOES_ON], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # Linux: the other end is closed
            while os.read(ours, 4096):
                pass
        os.close(ours)
    assert process.returncode == 0
