"""The main screen: holds what was found, cell and measured, and shows it.

Whatever takes time runs in a thread and reports by a message; only the handlers here change what is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Vertical
from textual.widgets import Footer, Static
from textual.worker import Worker, WorkerState

from planner.engine.library import AnyEngine
from planner.fit import EMPTY_GRID, Grid
from planner.hardware import Hardware
from planner.launch import CacheType
from planner.reconcile.dry_comparison import DryComparison
from planner.reconcile.reconciliation import Reconciliation
from planner.sweeps import DEFAULT_CONTEXT, DEFAULT_USERS
from planner.tui import messages, run_text, text
from planner.tui.choices import Choice
from planner.tui.dialogs import CommandDialog
from planner.tui.grid import GridView
from planner.tui.panels import Breakdown, Header, ModelList, Reasons, StatusLine
from planner.tui.threads import Running, ThreadedScreen
from planner.tui.work import Key, Selected, Sources

WIDE_COLUMNS, WIDE_LINES = 120, 32
"""From this size on the three cache types stand side by side."""
CLOCK_INTERVAL_S = 0.5


class MainScreen(ThreadedScreen, inherit_bindings=False):
    """Machine, models, grid, and what the selected cell holds."""

    BINDINGS = [  # noqa: RUF012 - Textual's own form
        Binding("m", "measure", "Measure"),
        Binding("d", "dry_run", "Dry run"),
        Binding("g", "ghost", "Ghost"),
        Binding("escape", "stop", "Stop", key_display="esc"),
        Binding("c", "copy", "Copy"),
        Binding("1", "cache_type(0)", "Cache", key_display="1-3"),
        Binding("2", "cache_type(1)", show=False),
        Binding("3", "cache_type(2)", show=False),
        Binding("tab", "app.focus_next", "Next"),
        Binding("shift+tab", "app.focus_previous", show=False),
        Binding("escape", "back", "Back", show=False),
    ]

    def __init__(self, sources: Sources) -> None:
        super().__init__(sources)
        self._hardware: Hardware | None = None
        self._engine: AnyEngine | None = None
        self._engine_problem = ""
        self._choices: list[Choice] = []
        self._chosen = 0
        self._wish: tuple[CacheType, int, int] = ("f16", DEFAULT_CONTEXT, DEFAULT_USERS)
        self._planned_choice: Choice | None = None
        self._planned = EMPTY_GRID
        """The grid as the formula has it."""
        self._problem = ""
        self._dry_runs: dict[Key, DryComparison] = {}
        self._runs: dict[Key, Reconciliation] = {}
        self._measuring: Running | None = None

    @property
    def is_measuring(self) -> bool:
        """Whether a measurement's thread has not yet said that its server has ended."""
        return self._measuring is not None

    def compose(self) -> ComposeResult:
        """The parts; the style sheet places them by the size of the terminal."""
        yield Header(id="header", markup=False)
        with Container(id="parts"):
            yield ModelList(id="models", markup=False, compact=True)
            with Vertical(id="grid-part"):
                yield GridView(id="grid")
                yield Static(id="legend", markup=False)
            yield Breakdown(id="breakdown")
            yield Reasons(id="reasons")
        yield StatusLine(id="status", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Draw at once; look at the machine, for an engine and for models meanwhile."""
        for part, title in (("models", "Models"), ("grid-part", text.GRID_TITLE), ("reasons", "Why")):
            self.query_one(f"#{part}").border_title = title
        self.query_one(GridView).placeholder = text.SEARCHING
        self._show_top()
        self._look()
        self._seek_engine()
        self._seek_models()
        self.set_interval(CLOCK_INTERVAL_S, self._show_progress)
        self.query_one(GridView).focus()

    # What the threads report ---------------------------------------------------------------------------------

    @on(messages.MachineSeen)
    def _machine_seen(self, message: messages.MachineSeen) -> None:
        self._hardware = message.hardware
        self._show_top()
        self._replan()

    @on(messages.EngineSought)
    def _engine_sought(self, message: messages.EngineSought) -> None:
        self._engine, self._engine_problem = message.engine, message.problem
        self._show_top()
        self._replan()

    @on(messages.ChoicesFound)
    def _choices_found(self, message: messages.ChoicesFound) -> None:
        first = not self._choices
        self._choices += message.choices
        self._show_models()
        if first:
            self._replan()

    @on(messages.GridPlanned)
    def _grid_planned(self, message: messages.GridPlanned) -> None:
        if message.choice is self._choice:
            self._show_grid(message.grid, "")
            self._refine_grid()

    @on(messages.GridRefined)
    def _grid_refined(self, message: messages.GridRefined) -> None:
        if message.planned is self._planned:
            self.query_one(GridView).grid = message.grid
            self._show_cell()

    @on(messages.DryRunMade)
    def _dry_run_made(self, message: messages.DryRunMade) -> None:
        self._dry_runs[message.selected.key] = message.comparison
        self._show_cell()
        if sentence := run_text.dry_sentence(message.comparison):
            self.query_one(StatusLine).show_error(sentence)

    @on(messages.PlanFailed)
    def _plan_failed(self, message: messages.PlanFailed) -> None:
        if message.choice is self._choice:
            self._show_grid(EMPTY_GRID, message.sentence)

    @on(messages.CommandWritten)
    def _command_written(self, message: messages.CommandWritten) -> None:
        self.app.copy_to_clipboard(message.command)
        shown = text.continued(message.command, self.size.width - 12)
        self.app.push_screen(CommandDialog(shown, message.verdict))

    @on(messages.Refused)
    def _refused(self, message: messages.Refused) -> None:
        self.query_one(StatusLine).show_error(message.sentence)

    @on(messages.Progressed)
    def _progressed(self, message: messages.Progressed) -> None:
        if self._measuring is not None:
            self._measuring = replace(self._measuring, progress=message.progress)
            self._show_progress()

    @on(messages.MeasurementEnded)
    def _measurement_ended(self, message: messages.MeasurementEnded) -> None:
        self._measuring = None
        self.refresh_bindings()
        status = self.query_one(StatusLine)
        status.clear()
        if message.sentence:
            status.show_error(message.sentence)
        if message.run is not None:
            self._runs[message.selected.key] = message.run
            self._show_cell()
            self._look()  # the grid is planned again with what was learned
            if self._engine is not None and self._engine.devices:
                self._seek_engine()  # and with what they have free now
        else:
            self._refine_grid()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Say what went wrong where no one foresaw it."""
        if event.state is WorkerState.ERROR:
            self.query_one(StatusLine).show_error(f"This should not have happened: {event.worker.error!r}.")

    # What the person does ------------------------------------------------------------------------------------

    @on(ModelList.Chosen)
    def _model_chosen(self, message: ModelList.Chosen) -> None:
        if message.index != self._chosen:
            self._chosen = message.index
            self._planned_choice = None
            self._replan()

    @on(GridView.Moved)
    def _cell_chosen(self) -> None:
        if self._selected is not None:
            cell = self._selected.cell
            self._wish = (cell.cache_type, cell.ctx_per_user, cell.users)
            self._show_cell()

    @on(Breakdown.Explained)
    def _row_explained(self) -> None:
        self._show_reasons()

    def action_cache_type(self, index: int) -> None:
        """Select the same cell with another cache type."""
        self.query_one(GridView).choose_cache_type(index)

    def action_measure(self) -> None:
        """Measure the selected cell."""
        self._start_measuring(ghost=False)

    def action_ghost(self) -> None:
        """Measure the selected cell on a ghost: a file that is not here whole, or weights that need not be read."""
        self._start_measuring(ghost=True)

    def _start_measuring(self, *, ghost: bool) -> None:
        if (ready := self._ready()) is not None:
            selected, engine = ready
            self._measuring = Running(selected, self._sources.clock(), ghost)
            self.query_one(StatusLine).clear()
            self.refresh_bindings()
            self._show_progress()
            self.workers.cancel_group(self, "refine")  # dry runs would take the processor from what is measured
            self._measure(self._measuring, engine)

    def action_dry_run(self) -> None:
        """Ask llama.cpp itself about the selected cell."""
        if self._selected is not None and self._hardware is not None:
            self._ask(self._selected, self._hardware, self._engine)

    def action_copy(self) -> None:
        """Copy the command of the selected cell, and show it."""
        if (ready := self._ready()) is not None:
            self._write_command(*ready)

    def _ready(self) -> tuple[Selected, AnyEngine] | None:
        """What measuring and copying need; where the engine is missing, the person is told."""
        if self._selected is None:
            return None
        if self._engine is None:
            self.query_one(StatusLine).show_error(self._engine_problem or text.SEEKING_ENGINE)
            return None
        return self._selected, self._engine

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Either measure or stop, never both."""
        if action in ("measure", "ghost", "dry_run", "back"):
            return self._measuring is None
        if action == "stop":
            return self._measuring is not None
        return super().check_action(action, parameters)

    def action_stop(self) -> None:
        """Stop the measurement; its thread says when the server has ended."""
        if self._measuring is not None:
            self._measuring.stop.set()

    def action_back(self) -> None:
        """Close the message; else go from the result back to the prediction."""
        status = self.query_one(StatusLine)
        if status.display:
            status.clear()
        elif self._selected is not None:
            if self._runs.pop(self._selected.key, None) is None:
                self._dry_runs.pop(self._selected.key, None)
            self._show_cell()

    def on_resize(self, event: events.Resize) -> None:
        """Take the layout that has room."""
        wide = event.size.width >= WIDE_COLUMNS and event.size.height >= WIDE_LINES
        self.set_class(wide, "-wide")
        self.query_one(GridView).wide = wide
        self._show_models()
        self._show_cell()
        self._show_progress()

    # What is shown -------------------------------------------------------------------------------------------

    @property
    def _choice(self) -> Choice | None:
        return self._choices[self._chosen] if self._choices else None

    @property
    def _selected(self) -> Selected | None:
        view = self.query_one(GridView)
        if self._choice is None or self._choice is not self._planned_choice or not view.grid.cells:
            return None
        return Selected(self._choice, view.grid.at(view.position))

    def _replan(self) -> None:
        if self._choice is not None and self._hardware is not None:
            self._plan(self._choice, self._hardware, self._engine)

    def _show_top(self) -> None:
        machine = text.SEEKING_MACHINE if self._hardware is None else text.machine_line(self._hardware)
        sought = self._engine is not None or self._engine_problem
        engine = text.engine_line(self._engine) if sought else text.SEEKING_ENGINE
        self.query_one(Header).show(machine, engine, alarming=bool(self._engine_problem))

    def _show_models(self) -> None:
        self.query_one(ModelList).show(text.choice_lines(self._choices, self.size.width))
        if any(choice.entry is not None for choice in self._choices):
            self.query_one(ModelList).border_title = text.ONLY_GHOSTS

    def _show_grid(self, grid: Grid, problem: str) -> None:
        view = self.query_one(GridView)
        view.position = grid.nearest(*self._wish)
        view.grid, view.placeholder = grid, text.NO_GRID
        self._planned_choice, self._planned, self._problem = self._choice, grid, problem
        self._show_cell()

    def _refine_grid(self) -> None:
        """Let llama.cpp's own figures take the formula's place, once it is known whom to ask."""
        sought = self._engine is not None or self._engine_problem
        if self._choice is not None and self._planned.cells and sought and self._measuring is None:
            self._refine(self._choice, self._planned, self._engine)

    def _show_cell(self) -> None:
        view, wide = self.query_one(GridView), self.has_class("-wide")
        self._looked_at = view.position
        self.query_one("#legend", Static).update(text.legend(view.grid, wide=wide))
        self.query_one(Breakdown).show(self._cell_table(wide=wide))
        self._show_reasons()

    def _cell_table(self, *, wide: bool) -> text.Table:
        """Of the selected cell what is known best: measured, else by a dry run that was asked for, else planned."""
        if self._selected is None:
            return text.Table()
        cell, key = self._selected.cell, self._selected.key
        if (run := self._runs.get(key)) is not None:
            return run_text.run_table(cell, run, wide=wide)
        if (comparison := self._dry_runs.get(key)) is not None:
            return run_text.dry_table(cell, comparison, wide=wide)
        return text.breakdown(cell, wide=wide)

    def _show_reasons(self) -> None:
        sentences: Sequence[text.Styled] = [(self._problem, "$foreground")]
        if self._selected is not None:
            run = self._runs.get(self._selected.key)
            speed = run_text.speed_line(run) if run else ""
            sentences = text.reasons(self._selected.cell, self.query_one(Breakdown).reason, speed)
        self.query_one(Reasons).show(sentences)

    def _show_progress(self) -> None:
        if self._measuring is not None:
            elapsed_s = self._sources.clock() - self._measuring.started_s
            line = run_text.progress_line(self._measuring.progress, elapsed_s, wide=self.has_class("-wide"))
            self.query_one(StatusLine).show_progress(run_text.running_title(self._measuring.selected.cell), line)
