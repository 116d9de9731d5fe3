"""The text of a log that may have no end: all of it, or its head and its tail."""

from __future__ import annotations

from collections import deque

MOST_BYTES = 16 << 20
"""What the head may take, and the tail again. Loading says some 50 KB, a request one or two."""
_LINE_COST = 64
"""What a line takes beside its characters, here or with whoever splits the text: endless ones are often short."""


class LogText:
    """Lines as they come. Of a log that is too long the middle is left out: buffers are told early, tables at the end,
    and so is why a server died.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._head: list[str] = []
        self._head_bytes = 0
        self._tail: deque[str] = deque()
        self._tail_bytes = 0
        self._left_out = 0
        self.count = 0
        """Lines that came, those that were left out included."""

    def add(self, line: str) -> None:
        """Take the next line, its end included."""
        self.count += 1
        cost = len(line) + _LINE_COST
        if not self._tail and self._head_bytes + cost <= self._most_bytes:
            self._head.append(line)
            self._head_bytes += cost
            return
        self._tail.append(line)
        self._tail_bytes += cost
        while self._tail_bytes > self._most_bytes:
            self._tail_bytes -= len(self._tail.popleft()) + _LINE_COST
            self._left_out += 1

    def __str__(self) -> str:
        """The text, with a line that says how many lines are left out, where some are."""
        gap = f"... {self._left_out} lines were left out here ...\n" if self._left_out else ""
        return "".join((*self._head, gap, *self._tail))
