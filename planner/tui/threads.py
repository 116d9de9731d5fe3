"""What the main screen does in threads. Each only reports by a message; none touches a widget."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from textual import work
from textual.screen import Screen
from textual.worker import get_current_worker

from planner.engine.library import AnyEngine
from planner.engine.process import Cancelled
from planner.errors import ModelError, PlannerError
from planner.fit import Grid, Position
from planner.grids import plan_grid
from planner.hardware import Hardware
from planner.measure import Progress
from planner.tui import messages, text
from planner.tui.choices import Choice
from planner.tui.work import Selected, Sources, ask_cell, measure_cell, refine_grid, write_command


@dataclass(frozen=True, eq=False)
class Running:
    """A measurement under way."""

    selected: Selected
    started_s: float
    ghost: bool = False
    """Whether a ghost runs in the place of the file."""
    stop: threading.Event = field(default_factory=threading.Event)
    progress: Progress = field(default_factory=lambda: Progress(phase="starting"))


class ThreadedScreen(Screen[None]):
    """A screen with threads for whatever takes time."""

    def __init__(self, sources: Sources) -> None:
        super().__init__()
        self._sources = sources
        self._looked_at = Position()
        """The selected cell, for the thread that refines the grid around it."""

    @work(thread=True, exclusive=True, exit_on_error=False, group="machine")
    def _look(self) -> None:
        self.post_message(messages.MachineSeen(self._sources.detect()))

    @work(thread=True, exclusive=True, exit_on_error=False, group="engine")
    def _seek_engine(self) -> None:
        try:
            self.post_message(messages.EngineSought(self._sources.find_engine()))
        except (PlannerError, OSError) as error:
            self.post_message(messages.EngineSought(None, text.sentence(error)))

    @work(thread=True, exclusive=True, exit_on_error=False, group="models")
    def _seek_models(self) -> None:
        worker = get_current_worker()
        batch: list[Choice] = []
        told = 0
        for choice in self._sources.find_choices():
            if worker.is_cancelled:
                return
            batch.append(choice)
            # Ever larger batches: the first row is there at once, and many files do not redraw as often.
            if len(batch) > told:
                self.post_message(messages.ChoicesFound(tuple(batch)))
                told += len(batch)
                batch.clear()
        self.post_message(messages.ChoicesFound(tuple(batch)))

    @work(thread=True, exclusive=True, exit_on_error=False, group="grid")
    def _plan(self, choice: Choice, hardware: Hardware, engine: AnyEngine | None) -> None:
        worker = get_current_worker()
        try:
            if choice.model is None:
                raise ModelError(choice.problem)
            grid = plan_grid(choice.model, hardware, engine, self._sources.record)
        except PlannerError as error:
            self.post_message(messages.PlanFailed(choice, str(error)))
            return
        except Exception as error:  # the edge of the thread: what nobody foresaw must not leave another model's plan
            self.post_message(messages.PlanFailed(choice, f"This file could not be planned: {error!r}."))
            return
        if not worker.is_cancelled:
            self.post_message(messages.GridPlanned(choice, grid))

    @work(thread=True, exclusive=True, exit_on_error=False, group="refine")
    def _refine(self, choice: Choice, grid: Grid, engine: AnyEngine | None) -> None:
        worker = get_current_worker()
        try:
            for refined in refine_grid(
                choice,
                grid,
                engine,
                self._sources,
                near=lambda: self._looked_at,
                cancelled=lambda: worker.is_cancelled,
            ):
                self.post_message(messages.GridRefined(grid, refined))
        except Cancelled:
            return
        except (PlannerError, OSError):
            return  # the formula's figures stand, marked as such; `d` says why nobody can be asked

    @work(thread=True, exclusive=True, exit_on_error=False, group="ask")
    def _ask(self, selected: Selected, hardware: Hardware, engine: AnyEngine | None) -> None:
        worker = get_current_worker()
        try:
            made = ask_cell(selected, hardware, engine, self._sources, cancelled=lambda: worker.is_cancelled)
        except Cancelled:
            return
        except (PlannerError, OSError) as error:
            self.post_message(messages.Refused(text.sentence(error)))
        else:
            self.post_message(messages.DryRunMade(selected, made))

    @work(thread=True, exclusive=True, exit_on_error=False, group="command")
    def _write_command(self, selected: Selected, engine: AnyEngine) -> None:
        try:
            command = write_command(selected, engine)
        except (PlannerError, OSError) as error:
            self.post_message(messages.Refused(text.sentence(error)))
        else:
            self.post_message(messages.CommandWritten(command, text.verdict_line(selected.cell.plan)))

    # The server dies with the thread that started it (Linux), so one thread runs the whole measurement.
    @work(thread=True, exclusive=True, exit_on_error=False, group="measure")
    def _measure(self, running: Running, engine: AnyEngine) -> None:
        worker = get_current_worker()
        ended = messages.MeasurementEnded(running.selected)

        def report(progress: Progress) -> None:
            self.post_message(messages.Progressed(progress))

        try:
            ended.run = measure_cell(
                running.selected,
                engine,
                self._sources,
                ghost=running.ghost,
                on_progress=report,
                cancelled=lambda: running.stop.is_set() or worker.is_cancelled,
            )
        except Cancelled:
            ended.sentence = "Stopped; nothing is left running."
        except (PlannerError, OSError) as error:
            ended.sentence = text.sentence(error)
        finally:
            self.post_message(ended)
