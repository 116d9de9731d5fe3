"""The app itself: its sources, its one screen, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from textual.app import App
from textual.binding import Binding

from planner.campaign import run_campaign
from planner.engine.dry_run import Library, who_answers
from planner.engine.find import Engine
from planner.engine.library import AnyEngine, find_any_engine
from planner.hardware import Hardware
from planner.reconcile.record import Record, default_folder
from planner.tui.choices import Choice, find_choices
from planner.tui.dialogs import HelpDialog
from planner.tui.screen import MainScreen
from planner.tui.work import RunCampaign, Sources


def make_app(
    engine: Path | None = None,
    *,
    detect: Callable[[], Hardware] = Hardware.detect,
    find: Callable[[], AnyEngine] | None = None,
    choices: Callable[[], Iterable[Choice]] = find_choices,
    record: Record | None = None,
    run: RunCampaign = run_campaign,
    answerer: Callable[[AnyEngine | None], AbstractContextManager[Engine | Library]] = who_answers,
    clock: Callable[[], float] = time.monotonic,
) -> PlannerApp:
    """The app, ready to run. `engine` names the llama-server to use; the rest stands in for the world.

    `detect` looks at the machine, `find` finds the engine, `choices` the models, `record` keeps the
    measurements, `run` measures, `answerer` makes dry runs and `clock` gives seconds.
    """
    return PlannerApp(
        Sources(
            detect=detect,
            find_engine=find or (lambda: find_any_engine(engine)),
            find_choices=choices,
            record=record or Record(default_folder()),
            run=run,
            answerer=answerer,
            clock=clock,
        )
    )


class PlannerApp(App[object]):
    """Shows the main screen; ends in order whatever ends it.

    When it closes, Textual marks its workers as cancelled and gives the terminal back; the process then
    waits for the thread of a measurement, which stops its server first.
    """

    TITLE = "planner"
    CSS_PATH = "planner.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS = [  # noqa: RUF012 - Textual's own form
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c,ctrl+q", "quit", show=False, priority=True),
    ]

    def __init__(self, sources: Sources) -> None:
        super().__init__()
        self._main = MainScreen(sources)

    def get_default_screen(self) -> MainScreen:
        """The one screen."""
        return self._main

    async def run_async(self, *args: Any, **settings: Any) -> object:
        """Run until closed; the terminal is given back when this returns, the threads may still be ending."""
        try:
            result = await super().run_async(*args, **settings)
        finally:
            if not self.is_headless:
                _leave_the_terminal()
        if self._main.is_measuring and not self.is_headless:
            print("Stopping llama.cpp …", file=sys.stderr)
        return result

    def on_mount(self) -> None:
        """Let signals close the app instead of breaking into its loop."""
        if not self.is_headless:
            loop = asyncio.get_running_loop()
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                if hasattr(signal, name):
                    with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                        loop.add_signal_handler(getattr(signal, name), self.exit)

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(HelpDialog())


def _leave_the_terminal() -> None:
    """Take back Textual's handlers of stopping and going on: a terminal that closes while threads are ending sends
    SIGCONT, at which Textual would read from it again, for ever.
    """
    for name in ("SIGTSTP", "SIGCONT"):
        if hasattr(signal, name):
            with contextlib.suppress(ValueError):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
