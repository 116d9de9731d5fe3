"""The parts of the screen beside the grid. Each shows texts that it is given."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from planner.tui.text import Styled, Table


class Header(Static):
    """The machine and the engine, a line each."""

    def show(self, machine: str, engine: str, *, alarming: bool) -> None:
        """Show both lines; the second in a warning's colour where something is missing."""
        labels = [Content.styled(f"{label:<9}", "$foreground-muted") for label in ("Machine", "Engine")]
        self.update(
            Content.assemble(
                labels[0], machine, "\n", labels[1], (engine, "$text-warning" if alarming else "$foreground")
            )
        )


class ModelList(OptionList):
    """The models; the highlighted one is the one that is planned."""

    class Chosen(Message):
        """Another row is highlighted."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def show(self, rows: Sequence[Styled]) -> None:
        """Show these rows; the highlight stays where it is."""
        kept = self.highlighted
        with self.prevent(OptionList.OptionHighlighted):
            self.clear_options()
            self.add_options([Option(Content.styled(*row)) for row in rows])
            if rows:
                self.highlighted = kept or 0

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Tell the app by the row's number."""
        event.stop()
        self.post_message(self.Chosen(event.option_index))


class Breakdown(Vertical):
    """The rows of the selected cell: predicted or measured; the reason of the highlighted one is told."""

    class Explained(Message):
        """Another row is highlighted: its reason."""

        def __init__(self, reason: str) -> None:
            super().__init__()
            self.reason = reason

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._table = Table()

    def compose(self) -> ComposeResult:
        """What the rows come to, their heading, the rows."""
        yield Static(id="rows-total", markup=False)
        yield Static(id="rows-head", markup=False)
        yield OptionList(id="rows", markup=False, compact=True)

    def show(self, table: Table) -> None:
        """Show a table; the highlight stays on the row of the same number."""
        if table == self._table:
            return
        rows = self.query_one("#rows", OptionList)
        kept = rows.highlighted or 0
        self._table = table
        self.border_title = Content(table.title).markup
        self.query_one("#rows-head", Static).update(table.head)
        self.query_one("#rows-total", Static).update(table.total)
        with rows.prevent(OptionList.OptionHighlighted):
            rows.clear_options()
            rows.add_options([Option(line.text) for line in table.lines])
            if table.lines:
                rows.highlighted = min(kept, len(table.lines) - 1)
        self.post_message(self.Explained(self.reason))

    @property
    def reason(self) -> str:
        """The reason of the highlighted row; empty where there is no row."""
        highlighted = self.query_one("#rows", OptionList).highlighted
        if highlighted is None or highlighted >= len(self._table.lines):
            return ""
        return self._table.lines[highlighted].reason

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Tell the reason of the row."""
        event.stop()
        self.post_message(self.Explained(self.reason))


class Reasons(VerticalScroll):
    """Sentences about the selected cell: the launch, the verdict, the reason of a row, notes."""

    def compose(self) -> ComposeResult:
        """One text."""
        yield Static(id="reasons-text", markup=False)

    def show(self, parts: Sequence[Styled]) -> None:
        """Show these sentences."""
        pieces: list[Content | str | tuple[str, str]] = []
        for part in parts:
            pieces += ["\n", part] if pieces else [part]
        self.query_one("#reasons-text", Static).update(Content.assemble(*pieces))


class StatusLine(Static):
    """A measurement's progress, or the sentence of an error; not there otherwise."""

    def show_progress(self, title: str, line: str) -> None:
        """Show where a measurement is."""
        self._show(Content.assemble((f"{title}  ", "bold"), line), failed=False)

    def show_error(self, sentence: str) -> None:
        """Show why something did not work."""
        self._show(Content(sentence), failed=True)

    def clear(self) -> None:
        """Take the line away."""
        self.display = False

    def _show(self, content: Content, *, failed: bool) -> None:
        self.set_class(failed, "-failed")
        self.update(content)
        self.display = True
