"""The sizes of a graph's tensors, and how they add up to the fullest moment of a buffer on one device.

`graph.py` reads the sizes off a model and a launch; `compute.py` asks for the buffer of each device.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from planner.memory.attention import as_f16
from planner.memory.kv import KvCache

_HALVES = "f16", "f32"
"""Cache types that CUDA need not convert: F16, and F32, which every graph does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Bytes that cross to the device of a recurrent layer beside the hidden state, and back: views of its input are
    left to the device before.
    """

    layers: frozenset[int]
    onward: int
    back: int
    spared: int
    """Hidden states that find a place elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reused:
    """Keys and values of a layer that later layers read instead of their own."""

    layer: int
    readers: frozenset[int]
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSizes:
    """Bytes of the tensors that decide the compute buffer, for one ubatch."""

    family: str
    """Which kind of graph it is: how far the formula may be off depends on it."""
    tokens: int
    """Tokens computed at once, rounded up to whole slots."""
    outputs: int
    """Rows of logits."""
    short: bool = False
    """Whether it has so few layers that masks are free before the last: their place is then used again."""
    mask: int
    """All attention masks."""
    masks: tuple[tuple[int, frozenset[int]], ...] = ()
    """The mask of each cache, and the layers that use it."""
    hidden: int
    """One hidden state."""
    states: int = 4
    """Hidden states beside the highest peak, on the device that has the inputs."""
    mixed: bool = True
    """Whether tokens and embeddings both are inputs: two on the host, of which three states reach a device."""
    feed_forward: int
    """Peak inside the feed-forward."""
    dense: int = 0
    """The same of the layers without experts."""
    experts: int = 0
    """The same of the layers with experts."""
    one_expert: bool = False
    """Whether each token has one expert beside the one that sees all of them."""
    dense_layers: int = 0
    """Layers before the first with experts."""
    layers: int = 0
    """Of the trunk."""
    reused: tuple[Reused, ...] = ()
    """Keys and values that later layers read (Gemma 3n and 4)."""
    picked: int = 0
    """What every layer of a sparse attention opens in its mask, from the beginning until it is computed."""
    streams: int = 1
    """Parallel copies of the hidden state."""
    recurrence: int = 0
    """Peak inside a recurrence, which the last layer has at its full width, too."""
    convolved: int = 0
    """The result of its convolution, which finds a place among the inputs that a device copied, if it fits."""
    crossing: Crossing | None = None
    """What a recurrent layer exchanges with the device before; None where that is the hidden state alone."""
    queries: int = 0
    """The queries of one layer."""
    gap: int = 0
    """What the results of narrow experts leave unused on a device that gets its input from the host."""
    attention: int
    """Peak inside attention where that is more than a few hidden states; else 0."""
    scored: int = 0
    """What of it finds a place where a part of the layers is computed: the scores of an indexer."""
    hole: int = 0
    """What attention leaves unused beside the feed-forward, on a device that computes a part of the layers."""
    spread: tuple[int, int] = (0, 0)
    """Hidden states more, on such a device and on the host beside it."""
    logits: int
    unpicked: int = 0
    """What reaches the output for every token, where the rows to be told are picked behind the last weight."""
    rotation: int
    """Hadamard matrices of quantised caches."""
    index: int
    """Element indices of a transposed V cache (no flash attention)."""
    inputs: int
    """Token ids, positions, and the cells that each cache writes to."""
    caches: tuple[KvCache, ...] = ()
    """The caches that flash attention reads; none without it."""
    cache_types: tuple[str, str] = ("f16", "f16")
    further: int = 0
    """Embeddings that every layer gets, beside the hidden state."""

    @property
    def streamed(self) -> bool:
        """Whether streams beside the hidden state cross between devices, too (Gemma 3n)."""
        return self.spread != (0, 0)

    def copies(self, kind: str) -> int:
        """F16 keys and values of one layer that a back end keeps for flash attention.

        Read in `ggml/src/ggml-cuda/fattn.cu` and `ggml/src/ggml-metal/ggml-metal-ops.cpp`, and not run: CUDA
        converts what is not F16 (F32 is converted for every back end), Metal reserves them for any type.
        """
        if kind in ("cuda", "rocm"):
            return as_f16(self.caches, *(name not in _HALVES for name in self.cache_types))
        return as_f16(self.caches, keys=True, values=True) if kind == "metal" else 0

    def leaves_gap(self, first: bool) -> bool:
        """Whether what a device gets from the host, or from another, leaves a gap of a hidden state there."""
        if self.family == "scores":
            return self.queries <= self.hidden
        if self.family in ("recurrent", "latent"):
            return first or self.family == "recurrent"
        return self.experts > 0 and (first or self.family == "hybrid" or self.one_expert)

    def views(self, layers: Sequence[int]) -> int:
        """Of the further embeddings, of which every layer gets its own view."""
        return self.further * len(layers) // self.layers

    def reads_only(self, layers: Collection[int]) -> bool:
        """Whether these layers all read the keys and values of others."""
        return bool(self.reused) and frozenset(layers) <= frozenset().union(*(one.readers for one in self.reused))

    def from_the_longest(self, layers: Sequence[int]) -> Sequence[int]:
        """Of these layers, those from the first on that reads the whole context: its scores are the highest."""
        longest = max((one.size for one in self.reused), default=0)
        readers = frozenset().union(*(one.readers for one in self.reused if one.size == longest))
        return layers[next((place for place, layer in enumerate(layers) if layer in readers), 0) :]

    def fetched_by(self, layers: Collection[int]) -> int:
        """Keys and values that these layers read and that lie on another device: copied for each layer anew."""
        return sum(one.size * len(one.readers.intersection(layers)) for one in self.reused if one.layer not in layers)

    def host_total(self, layers: Sequence[int] = ()) -> int:
        """The buffer of a host that computes these layers, or everything: inputs, hidden states, the highest of
        three peaks.
        """
        base = self.shared + (self.states + 1 + (self.spread[1] if layers else 0)) * self.hidden
        # The masks, the rotation and three hidden states beside them are free when the logits are computed:
        # logits that fit into their place cost nothing. So are the embeddings that every layer gets.
        logits = self.logits if self.logits > self.mask + self.rotation + 3 * self.hidden else 0
        picked = self.picked_by(layers)
        scores = self.attention - (self.scored if layers else 0)
        attention = scores + picked if not layers or self.attends_on(layers) else 0
        feed_forward = self._feed_forward_of_few(layers) + max(0, picked - (1 + self.dense_layers) * self.picked)
        return base + max(max(feed_forward, self.recurrence, attention) + self.further, logits)

    def _feed_forward_of_few(self, layers: Sequence[int]) -> int:
        """Of two layers that use a mask each, the first leaves its mask's place to the experts' projections."""
        projection = self.experts // 3
        if not self.short or len(self.masks) < 2 or not projection:
            return self.feed_forward_on(layers)
        place = max((mask for mask, users in self.masks if 0 in users), default=0)
        return max(2 * self.hidden, self.feed_forward - min(3, place // projection) * projection)

    def host_inputs(self, copies: int = 1) -> int:
        """The buffer of a host that computes nothing: so many copies of each input, and what it looks up."""
        embeddings = (1 + self.mixed) * (copies + 1) * self.hidden
        return copies * self.shared + embeddings + self.further + (self.hidden if self.further else 0)

    def picked_by(self, layers: Collection[int]) -> int:
        """What all sparse layers have ready: those of `layers`, or of the model."""
        if not self.picked:
            return 0
        users = self.masks[0][1]
        return len(users.intersection(layers) if layers else users) * self.picked

    def feed_forward_on(self, layers: Sequence[int]) -> int:
        """The feed-forward on a device of these layers, some of which may be dense in front of experts."""
        if self.experts and self.dense_layers and layers:
            if layers[0] >= self.dense_layers:
                return self.experts
            if layers[-1] < self.dense_layers:
                return self.dense
        return self.feed_forward

    def attends_on(self, layers: Collection[int]) -> bool:
        """Whether a device of these layers computes attention."""
        return not self.masks or any(not users.isdisjoint(layers) for _, users in self.masks)

    def shared_on(self, layers: Collection[int]) -> int:
        """The same on a device of these layers: of the masks it gets those that they use."""
        return self.shared - sum(mask for mask, users in self.masks if users.isdisjoint(layers))

    @property
    def shared(self) -> int:
        """Inputs that every device which computes needs."""
        return self.mask + self.index + self.rotation + self.inputs

    @property
    def peak(self) -> int:
        """The highest of the three peaks where nothing can be reused."""
        return max(self.feed_forward, self.recurrence, self.attention, self.logits)
