"""The command line: one module per command, and here what they share on the way in and out.

Exit codes are the command line's contract: 0 it fits or it worked, 1 it failed, 2 wrong usage, 3 it does
not fit.
"""

from __future__ import annotations

from planner.cli.main import main

__all__ = ["main"]
