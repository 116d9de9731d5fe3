"""How ggml lays the tensors of a graph into one compute buffer, and with it how large that buffer is.

Tensors are placed one by one in the order of the graph, each in the smallest hole that it fits into, and give their
place back when the last node that reads them has run. An operation that works element by element takes the place of
a source that nothing else reads. Sizes are bytes.

Source: `ggml/src/ggml-alloc.c` (`ggml_gallocr_alloc_graph_impl`, `ggml_dyn_tallocr_alloc`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from planner.units import pad

_ENDLESS = 1 << 200


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One tensor of a graph. Weights lie in buffers of their own and are no nodes."""

    shape: tuple[int, ...]
    """Extents."""
    element: int = 4
    """Bytes of each element."""
    sources: tuple[Node, ...] = ()
    in_place: bool = False
    """Whether the operation may write where it reads."""
    view_of: Node | None = None
    """The tensor whose memory it shows; never itself a view."""
    is_input: bool = False
    """Whether it is set from outside, before the graph runs."""

    @property
    def size(self) -> int:
        """Bytes, of a view those that it shows."""
        return prod(self.shape) * self.element


@dataclass(slots=True)
class _Buffer:
    """The free blocks, in order; the last one has no end."""

    blocks: list[tuple[int, int]] = field(default_factory=lambda: [(0, _ENDLESS)])
    largest: int = 0

    def take(self, size: int) -> int:
        """The offset of a place: the smallest hole that holds it, else behind everything."""
        holes = [index for index, (_, room) in enumerate(self.blocks[:-1]) if room >= size]
        # Of holes of one size the last.
        chosen = min(holes, key=lambda index: (self.blocks[index][1], -index), default=len(self.blocks) - 1)
        offset, room = self.blocks[chosen]
        self.blocks[chosen : chosen + 1] = [(offset + size, room - size)] if room > size else []
        self.largest = max(self.largest, offset + size)
        return offset

    def give_back(self, offset: int, size: int) -> None:
        self.blocks.append((offset, size))
        self.blocks.sort()
        merged: list[tuple[int, int]] = []
        for start, room in self.blocks:
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((start, room))
        self.blocks = merged


class _Placing:
    """One pass over a graph."""

    def __init__(self, graph: Sequence[Node], inputs: Sequence[Node], alignment: int) -> None:
        self._alignment = alignment
        self.buffer = _Buffer()
        self._offsets: dict[Node, int] = {}
        self._readers: Counter[Node] = Counter(source for node in graph for source in node.sources)
        self._views: Counter[Node] = Counter(node.view_of for node in graph if node.view_of)
        for leaf in inputs:
            self._place(leaf)
        for node in graph:
            self._place(node)
            for source in node.sources:
                self._has_been_read(source)

    def _place(self, node: Node) -> None:
        if node.view_of is None:
            inherited = self._place_of_source(node) if node.in_place else None
            self._offsets[node] = self.buffer.take(self._padded(node)) if inherited is None else inherited

    def _place_of_source(self, node: Node) -> int | None:
        """The place of the first source that nothing else reads, which then counts as given up. Views own none."""
        for source in node.sources:
            alone = self._readers[source] == 1 and not self._views[source]
            alike = (source.shape, source.element) == (node.shape, node.element)
            if alone and alike and source in self._offsets:
                return self._offsets.pop(source)
        return None

    def _has_been_read(self, source: Node) -> None:
        self._readers[source] -= 1
        if self._readers[source] or self._views[source]:
            return
        owner = source.view_of
        if owner is None:
            self._free(source)
            return
        self._views[owner] -= 1
        if not self._views[owner] and not self._readers[owner]:
            self._free(owner)

    def _free(self, node: Node) -> None:
        offset = self._offsets.pop(node, None)
        if offset is not None:
            self.buffer.give_back(offset, self._padded(node))

    def _padded(self, node: Node) -> int:
        return pad(node.size, self._alignment)


def buffer_bytes(graph: Sequence[Node], inputs: Sequence[Node], alignment: int) -> int:
    """Bytes of the buffer that holds this graph: its nodes in the order they run, and its inputs, which come first."""
    return _Placing(graph, inputs, alignment).buffer.largest
