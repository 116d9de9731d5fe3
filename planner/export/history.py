"""The record as JSON documents."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from planner.export.documents import SCHEMA_VERSION, Document
from planner.reconcile.history import History, Run, in_force


def history_document(history: History) -> Document:
    """All runs in short, and what they taught."""
    return {
        "schema_version": SCHEMA_VERSION,
        "runs": [asdict(run) for run in history.runs],
        "learned": [asdict(value) for value in in_force(history.runs)],
        "of_later_versions": len(history.later),
    }


def kept_document(run: Run, report: dict[str, Any], log: str) -> Document:
    """One run with everything that was kept of it."""
    return {"schema_version": SCHEMA_VERSION, **asdict(run), "run": report, "log": log}
