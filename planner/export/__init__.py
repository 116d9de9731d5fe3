"""Launches in the forms that people paste: for now the command line."""

from __future__ import annotations

from planner.export.command import shell_command

__all__ = ["shell_command"]
