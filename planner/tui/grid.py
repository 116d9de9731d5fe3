"""The grid of contexts x people x cache types as a widget: draws cells, moves the selection."""

from __future__ import annotations

from textual import events
from textual.binding import Binding
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from planner.fit import EMPTY_GRID, Grid, Position
from planner.tui.view import grid_lines, position_at

_STYLES = {
    "plain": "$foreground",
    "quiet": "$foreground-muted",
    "chosen": "bold $text-primary",
    "fits": "$text-success on $success-muted",
    "tight": "$text-warning on $warning-muted",
    "too_big": "$text-error on $error-muted",
    "refused": "$foreground-muted on $surface",
    "unknown": "$foreground-muted on $surface",
    "selected fits": "bold $background on $success",
    "selected tight": "bold $background on $warning",
    "selected too_big": "bold $background on $error",
    "selected refused": "bold $background on $foreground",
    "selected unknown": "bold $background on $foreground",
}


class GridView(Widget, can_focus=True):
    """Shows a grid and which of its cells is selected."""

    BINDINGS = [  # noqa: RUF012 - Textual's own form
        Binding("up", "move(-1, 0)", show=False),
        Binding("down", "move(1, 0)", show=False),
        Binding("left", "move(0, -1)", show=False),
        Binding("right", "move(0, 1)", show=False),
    ]

    class Moved(Message):
        """Another cell was selected here."""

        def __init__(self, position: Position) -> None:
            super().__init__()
            self.position = position

    grid: reactive[Grid] = reactive(EMPTY_GRID, layout=True)
    position: reactive[Position] = reactive(Position())
    wide: reactive[bool] = reactive(False)
    placeholder: reactive[str] = reactive("", layout=True)
    """What is said while there is no grid."""

    def render(self) -> Content:
        """The cells, or why there are none."""
        if not self.grid.cells:
            return Content(self.placeholder)
        lines = grid_lines(self.grid, self.position, wide=self.wide)
        return Content("\n").join(
            Content.assemble(*((span.text, _STYLES[span.kind]) for span in line)) for line in lines
        )

    def action_move(self, rows: int, columns: int) -> None:
        """Select the cell so many rows down and columns right."""
        if self.grid.cells:
            self._select(self.grid.moved(self.position, rows=rows, columns=columns))

    def choose_cache_type(self, cache_type: int) -> None:
        """Select the same cell with another cache type."""
        if self.grid.cells:
            self._select(self.grid.with_cache_type(self.position, cache_type))

    def on_click(self, event: events.Click) -> None:
        """Select the cell under the pointer."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        place = position_at(self.grid, self.position, offset.x, offset.y, wide=self.wide)
        if place is not None:
            self._select(place)

    def _select(self, position: Position) -> None:
        if position != self.position:
            self.position = position
            self.post_message(self.Moved(position))
