"""The app with a real llama-server behind it; the model is a ghost small enough for a busy machine."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_engines import write_script
from stand_ins import PATIENCE_S, app_of, main_screen, settled, tiny_entry, until

from planner import Hardware
from planner.campaign import run_campaign
from planner.engine.dry_run import who_answers
from planner.engine.find import Engine, find_engine
from planner.reconcile.record import Record
from planner.tui.app import PlannerApp
from planner.tui.choices import Choice, file_choice, ghost_model
from planner.tui.grid import GridView
from planner.tui.panels import StatusLine
from planner.tui.text import SOURCES

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]


def real_app(tmp_path: Path, **stand_ins: Any) -> PlannerApp:
    entry = tiny_entry()
    choice = Choice(name=entry.title, model=ghost_model(entry), entry=entry)
    real = {"find": find_engine, "run": run_campaign, "detect": Hardware.detect, "clock": time.monotonic}
    return app_of(tmp_path, **{"choices": (choice,), **real, **stand_ins})


def servers_of(pid: int) -> list[psutil.Process]:
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "llama-server" in child.name():
                    found.append(child)
    return found


def is_over() -> bool:
    """Whether no server of ours runs and no ghost is on disk; what a thread started ends a moment after its result."""
    ghosts = Path(os.environ["XDG_CACHE_HOME"]) / "planner" / "ghosts"
    return not servers_of(os.getpid()) and not (ghosts.is_dir() and any(ghosts.iterdir()))


def wait_until_over() -> None:
    """The same for the threads that a pilot leaves running; the program waits for them before it ends."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_over():
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def test_m_measures_for_real_and_learns(tmp_path: Path) -> None:
    async with real_app(tmp_path).run_test() as pilot:
        await settled(pilot)
        await pilot.press("left", "m")
        breakdown = main_screen(pilot).query_one("#breakdown")
        await until(pilot, lambda: str(breakdown.border_title).startswith("Ghost measured"))
        await until(pilot, is_over)
        await settled(pilot)
        cells = main_screen(pilot).query_one(GridView).grid.cells
        assert all("learned" in [a.certainty for a in cell.plan.allocations] for cell in cells)
    assert len(Record(tmp_path / "record").history().runs) == 1


async def test_quitting_while_measuring_ends_the_server(tmp_path: Path) -> None:
    app = real_app(tmp_path)
    async with app.run_test() as pilot:
        await settled(pilot)
        await pilot.press("left", "m")
        await until(pilot, lambda: bool(servers_of(os.getpid())))
        await pilot.press("q")
    wait_until_over()


PROGRAM = """
import sys
from pathlib import Path
from test_tui_engine import real_app
real_app(Path(sys.argv[1])).run()
"""


@contextlib.contextmanager
def in_a_terminal(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The app as a process of its own in a pseudo-terminal; its process and the terminal's other end."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={
            **os.environ,
            "TERM": "xterm-256color",
            "COLUMNS": "80",
            "LINES": "24",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, process: subprocess.Popen[bytes], happened: Callable[[str], bool]) -> str:
    """What the terminal showed until this had happened, or until the process ended."""
    shown = ""
    deadline = time.monotonic() + PATIENCE_S
    while not happened(shown):
        assert time.monotonic() < deadline, shown[-2000:]
        with contextlib.suppress(BlockingIOError, OSError):
            shown += os.read(terminal, 65536).decode(errors="replace")
        if process.poll() is not None:
            break
        time.sleep(0.02)
    return shown


def is_ready(shown: str) -> bool:
    """Whether the grid is there and the engine is found."""
    return "stay free" in shown and any(source in shown for source in SOURCES.values())


LEAVES_ALTERNATE_SCREEN = "\x1b[?1049l"


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are POSIX")
@pytest.mark.parametrize("way", ["q", "ctrl+c", "SIGTERM", "SIGHUP"])
def test_every_way_out_ends_the_server_and_restores_the_terminal(tmp_path: Path, way: str) -> None:
    with in_a_terminal(tmp_path) as (process, terminal):
        read_until(terminal, process, is_ready)
        os.write(terminal, b"m")
        servers: list[psutil.Process] = []
        read_until(terminal, process, lambda _shown: bool(servers or servers.extend(servers_of(process.pid))))
        if way.startswith("SIG"):
            process.send_signal(getattr(signal, way))
        else:
            os.write(terminal, {"q": b"q", "ctrl+c": b"\x03"}[way])
        shown = read_until(terminal, process, lambda shown: LEAVES_ALTERNATE_SCREEN in shown)
        assert LEAVES_ALTERNATE_SCREEN in shown
        process.wait(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert [server.is_running() for server in servers] == [False]
        with contextlib.suppress(OSError):
            shown += os.read(terminal, 65536).decode(errors="replace")
        assert "Traceback" not in shown


async def test_the_grid_becomes_llama_cpps_own_while_one_looks(tmp_path: Path) -> None:
    app = real_app(tmp_path, answerer=who_answers)
    async with app.run_test(size=(120, 36)) as pilot:
        await settled(pilot)
        view = main_screen(pilot).query_one(GridView)
        await until(pilot, lambda: view.grid.count("formula") == 0)
        legend = str(main_screen(pilot).query_one("#legend").render())
        assert "≈" not in legend
        assert f"no mark: llama.cpp's own ({view.grid.count('dry run')})" in legend
        await until(pilot, is_over)


async def test_d_shows_the_dry_run_of_the_cell_and_esc_the_prediction_again(tmp_path: Path) -> None:
    async with real_app(tmp_path, answerer=who_answers).run_test(size=(120, 36)) as pilot:
        await settled(pilot)
        breakdown = main_screen(pilot).query_one("#breakdown")
        planned = str(breakdown.border_title)
        await pilot.press("d")
        await until(pilot, lambda: str(breakdown.border_title).startswith("Dry run"))
        assert "dry run" in str(main_screen(pilot).query_one("#rows-head").render())
        await pilot.press("escape")
        await until(pilot, lambda: str(breakdown.border_title) == planned)


async def test_g_measures_a_ghost_of_a_file(tmp_path: Path, smollm_path: Path) -> None:
    app = real_app(tmp_path, choices=[file_choice(smollm_path)])
    async with app.run_test(size=(120, 36)) as pilot:
        await settled(pilot)
        await pilot.press("up", "up", "left", "g")
        breakdown = main_screen(pilot).query_one("#breakdown")
        await until(pilot, lambda: str(breakdown.border_title).startswith("Ghost measured"))
        await until(pilot, is_over)


async def test_d_says_why_nobody_can_be_asked(tmp_path: Path) -> None:
    async with real_app(tmp_path).run_test() as pilot:
        await settled(pilot)
        await pilot.press("d")
        status = main_screen(pilot).query_one(StatusLine)
        await until(pilot, lambda: status.display)
        assert "llama-cpp-python" in str(status.render())


async def test_quitting_while_llama_cpp_is_asked_ends_it(tmp_path: Path, engine: Engine) -> None:
    asked = tmp_path / "asked"
    slow = write_script(tmp_path / "llama-server", f"echo $$ >'{asked}'; sleep 600 & wait")

    @contextlib.contextmanager
    def one_who_takes_his_time(_engine: Engine | None) -> Iterator[Engine]:
        yield replace(engine, path=slow)

    async with real_app(tmp_path, answerer=one_who_takes_his_time).run_test() as pilot:
        await until(pilot, asked.exists)
    wait_until_over()
