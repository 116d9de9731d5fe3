"""`planner` in a terminal: starts the app. The only place of the command line that knows it."""

from __future__ import annotations

from pathlib import Path


def run_app(engine: Path | None) -> None:
    """Open the app and return when it is closed."""
    from planner.tui.app import make_app

    make_app(engine).run()
