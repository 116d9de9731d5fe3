"""How far something is, on standard error: one line that renews itself, on a terminal only."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence

from planner.measure import STAGES, Progress
from planner.units import format_bytes

_BAR_WIDTH = 24


class LiveLine:
    """A line that renews itself; does nothing where standard error is no terminal."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()

    def show(self, line: str) -> None:
        """Show this line in the place of the one before."""
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{line[:width]}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away, so that what follows starts clean."""
        self.show("")


class ProgressLine(LiveLine):
    """Draws the progress of several runs."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` says what each run is."""
        super().__init__()
        self._names = names
        self._start = time.monotonic()

    def update(self, index: int, progress: Progress) -> None:
        """Show where run number `index` is."""
        stages = list(STAGES)
        within = stages.index(progress.phase) + (progress.done / progress.total if progress.total else 0)
        filled = round(_BAR_WIDTH * (index + within / len(stages)) / len(self._names))
        bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
        counted = (
            f" {progress.done}/{progress.total}" if progress.total else f" {progress.done}" if progress.done else ""
        )
        memory = "" if progress.resident_bytes is None else f", {format_bytes(progress.resident_bytes)}"
        elapsed = time.monotonic() - self._start
        self.show(
            f"{bar} {self._names[index]} {index + 1}/{len(self._names)}: "
            f"{STAGES[progress.phase]}{counted}{memory}, {elapsed:.0f} s"
        )
