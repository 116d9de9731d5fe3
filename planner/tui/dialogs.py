"""The two windows above the screen: the keys, and a command to copy."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

_HELP = """\
arrows   choose a cell; right of the last is the next cache type
1 2 3    the same cell with an f16, q8_0 or q4_0 cache
tab      on to the next part: models, grid, what the cell holds
m        measure the cell: a real llama-server under real load
g        measure a ghost of it: true shapes, and no weights to read
d        dry run of the cell: what llama.cpp itself would reserve
c        copy the llama-server command of the cell
esc      stop measuring; close a message or a result
q        quit; a running measurement is stopped first

✓ fits   ~ tight   ✗ too big   – refused by llama.cpp   ? unknown
≈ by formula, until llama.cpp was asked; · between its own figures;
no mark: llama.cpp's own

A row says how many tokens each person has. A figure is the memory
needed at the start: tab to its parts, and each says why."""


class _Dialog(ModalScreen[None]):
    """A window that closes by escape."""

    TITLE = ""

    BINDINGS = [  # noqa: RUF012 - Textual's own form
        Binding("escape,enter,q,question_mark,c", "dismiss", "Close"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """The text in a frame."""
        with VerticalScroll(id="dialog") as frame:
            frame.border_title = self.TITLE
            frame.border_subtitle = "esc closes"
            yield Static(self._text, markup=False)


class HelpDialog(_Dialog):
    """The keys and the signs."""

    TITLE = "Keys"

    def __init__(self) -> None:
        super().__init__(_HELP)


class CommandDialog(_Dialog):
    """The command that was copied, for where a terminal does not let programs copy."""

    TITLE = "Given to the terminal to copy"

    def __init__(self, command: str, verdict: str) -> None:
        super().__init__(f"{command}\n\n{verdict}\n\nNothing to paste? Select it here by hand, often with shift held.")
