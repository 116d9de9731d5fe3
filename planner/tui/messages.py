"""What the threads tell the app."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from planner.engine.library import AnyEngine
from planner.fit import Grid
from planner.hardware import Hardware
from planner.measure import Progress
from planner.reconcile.dry_comparison import DryComparison
from planner.reconcile.reconciliation import Reconciliation
from planner.tui.choices import Choice
from planner.tui.work import Selected


@dataclass
class MachineSeen(Message):
    """What this machine is."""

    hardware: Hardware


@dataclass
class EngineSought(Message):
    """The engine, or None and the sentence that says why there is none."""

    engine: AnyEngine | None
    problem: str = ""


@dataclass
class ChoicesFound(Message):
    """More rows for the list of models."""

    choices: tuple[Choice, ...]


@dataclass
class GridPlanned(Message):
    """The grid of a model."""

    choice: Choice
    grid: Grid


@dataclass
class GridRefined(Message):
    """The grid with more of llama.cpp's own figures; `planned` is the one that it was before any."""

    planned: Grid
    grid: Grid


@dataclass
class DryRunMade(Message):
    """What llama.cpp itself says of a cell, beside the prediction."""

    selected: Selected
    comparison: DryComparison


@dataclass
class PlanFailed(Message):
    """Why a model has no grid."""

    choice: Choice
    sentence: str


@dataclass
class CommandWritten(Message):
    """The command of a cell, with the verdict on it."""

    command: str
    verdict: str


@dataclass
class Refused(Message):
    """Why something that the person asked for was not done."""

    sentence: str


@dataclass
class Progressed(Message):
    """Where the measurement is."""

    progress: Progress


@dataclass
class MeasurementEnded(Message):
    """The measurement is over and its server has ended: with a run, with an error, or with neither."""

    selected: Selected
    run: Reconciliation | None = None
    sentence: str = ""
