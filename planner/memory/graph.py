"""The tensors of a graph that decide its compute buffer, in closed form.

One small function for each moment at which a buffer can be fullest: attention (`attention.py`), feed-forward,
experts, recurrence (`recurrence.py`), logits. What is written as a number of hidden states was read off buffers
that llama.cpp reserved for full-size models.

Source: `src/llama-graph.cpp`, `src/models/*.cpp`; `src/llama-context.cpp` (`sched_reserve`, `graph_reserve`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from planner.launch import Launch, ResolvedContext
from planner.memory.attention import (
    F16,
    POOLED_SCORES,
    ROTATION_MULTIPLE,
    as_f16,
    attention_peak,
    copied_caches,
    is_rotated,
    picked_tokens,
)
from planner.memory.kv import F32, KvCache, flash_attention
from planner.memory.recurrence import recurrent_elements
from planner.model.graph import GraphShape
from planner.model.hyperparameters import Hyperparameters
from planner.model.layout import MemoryLayout
from planner.units import pad

_FEW_LAYERS = 2
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
    dense_layers: int = 0
    """Layers before the first with experts."""
    layers: int = 0
    """Of the trunk."""
    reused: tuple[tuple[int, int], ...] = ()
    """Layers whose keys and values later layers read (Gemma 3n and 4), and the bytes of those."""
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
    logits: int
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
        return self.experts > 0 and (first or self.family == "hybrid")

    def fetched_by(self, layers: Sequence[int]) -> int:
        """Keys and values that the last of these layers read, and that lie on another device."""
        if not self.reused or layers[-1] <= max(layer for layer, _ in self.reused):
            return 0
        return sum(size for layer, size in self.reused if layer not in layers)

    def host_total(self, layers: Sequence[int] = ()) -> int:
        """The buffer of a host that computes these layers, or everything: inputs, hidden states, the highest of
        three peaks.
        """
        base = self.shared + (self.states + 1) * self.hidden
        # The masks, the rotation and three hidden states beside them are free when the logits are computed:
        # logits that fit into their place cost nothing. So are the embeddings that every layer gets.
        logits = self.logits if self.logits > self.mask + self.rotation + 3 * self.hidden else 0
        picked = self.picked_by(layers)
        attention = self.attention + picked if not layers or self.attends_on(layers) else 0
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


def graph_sizes(
    shape: Hyperparameters,
    layout: MemoryLayout,
    launch: Launch,
    context: ResolvedContext,
    caches: tuple[KvCache, ...],
    prompt_tokens: int | None = None,
    *,
    graph: GraphShape,
    outputs: int | None = None,
) -> GraphSizes:
    """The sizes at reserve time, or at work on a prompt of `prompt_tokens` in each slot.

    `outputs` are the rows of logits; llama-server computes one for each slot and token ahead, and as many as a
    batch has where it serves embeddings.
    """
    tokens = pad(min(context.n_ctx, context.n_ubatch), context.n_seq_max)
    flash = flash_attention(layout, launch)
    family = _family(shape, layout, graph, flash)
    masked = _masked(family, caches)
    # Without a cache attention sees the ubatch itself.
    cells = [_cells_at_work(cache, context, prompt_tokens) for cache in masked]
    if not caches and not layout.states:
        cells = [tokens]
    if outputs is None:
        rows = context.n_seq_max * (1 + launch.tokens_ahead)
        outputs = context.n_batch if launch.embeddings else min(context.n_batch, rows)
    outputs = min(tokens, outputs)
    hidden = shape.n_embd * tokens * F32
    # Pooling selects each sequence's rows out of separate streams: one more hidden state.
    pooled = hidden if launch.embeddings and context.n_stream > 1 else 0
    if family == "compressed":
        pooled += (graph.hyper_connections - 1) * hidden
    last = tokens if shape.n_layer == 1 else outputs
    mask = sum(_mask_sizes(family, cells, tokens, flash))
    beside = graph.beside * hidden * flash
    recurrence = _recurrence(layout, graph, tokens, context.n_seq_max, mask)
    return GraphSizes(
        family=family,
        tokens=tokens,
        outputs=outputs,
        short=shape.n_layer <= _FEW_LAYERS,
        mask=mask,
        masks=tuple(zip(_mask_sizes(family, cells, tokens, flash), _mask_users(shape, layout, masked), strict=True))
        if masked
        else (),
        hidden=hidden,
        states=2 if family == "compressed" else 3 + graph.mixed,
        mixed=graph.mixed,
        feed_forward=_feed_forward(shape, graph, launch, tokens, last, bool(caches)) + beside,
        dense=_dense(shape, graph, launch, bool(caches)) * tokens * F32 + beside,
        experts=_experts(shape, graph) * tokens + beside if graph.expert_width else 0,
        dense_layers=graph.dense_layers,
        layers=shape.n_layer,
        reused=_reused(graph, masked),
        picked=picked_tokens(graph, tokens, cells) if family == "sparse" else 0,
        streams=graph.hyper_connections,
        recurrence=recurrence,
        convolved=graph.recurrence.mixed * tokens * F32 if graph.recurrence else 0,
        crossing=_crossing(layout, graph, tokens, hidden),
        queries=max(shape.n_head) * max(shape.head_k, shape.head_k_swa) * tokens * F32,
        gap=_gap(shape, graph) * tokens * F32,
        attention=attention_peak(family, shape, graph, launch, context, tokens, cells, flash)
        + copied_caches(family, shape, graph, launch, context, masked, flash),
        logits=shape.n_vocab * outputs * F32 + pooled,
        rotation=_rotation(shape, launch, len(caches)),
        index=0 if flash or shape.is_mla or family == "compressed" else _value_index(shape, tokens, len(masked)),
        inputs=tokens * (8 + 24 * max(1, len(cells))),
        caches=caches if flash else (),
        cache_types=(launch.cache_type_k, launch.cache_type_v),
        further=graph.per_layer_input * tokens * F32,
    )


def _family(shape: Hyperparameters, layout: MemoryLayout, graph: GraphShape, flash: bool) -> str:
    names = {cache.name for cache in layout.caches}
    if graph.architecture in POOLED_SCORES:
        return "pooled"
    if "CSA KV" in names or "HCA KV" in names:
        return "compressed"
    if "indexer KV" in names:
        return "sparse" if shape.is_mla else "blocks"
    if graph.recurrence and not names:
        return "recurrent"
    if layout.states:
        return "hybrid"
    if not names:
        return "encoder"
    if shape.is_mla:
        return "latent"
    if not flash:
        return "scores"
    if graph.expert_width:
        return "experts"
    return "plain" if graph.width > 2 * shape.n_embd else "narrow"


def _masked(family: str, caches: tuple[KvCache, ...]) -> tuple[KvCache, ...]:
    """The caches with a mask that some layer uses: MiniMax's indexer has that of its layers."""
    return caches[:1] if family == "blocks" else tuple(cache for cache in caches if cache.layout.layers)


def _mask_sizes(family: str, cells: Sequence[int], tokens: int, flash: bool) -> list[int]:
    sizes = [tokens * (F16 if flash else F32) * count for count in cells]
    if family in ("compressed", "sparse") and not flash:
        # DeepSeek's indexer, the last of its caches, has an F16 mask either way.
        sizes[-1] //= 2
    return sizes


def _cells_at_work(cache: KvCache, context: ResolvedContext, prompt_tokens: int | None) -> int:
    if prompt_tokens is None:
        return cache.cells
    shared = context.n_seq_max if context.n_stream == 1 else 1
    return min(cache.cells, pad(prompt_tokens * shared, 256))


def _feed_forward(
    shape: Hyperparameters, graph: GraphShape, launch: Launch, tokens: int, last: int, cached: bool
) -> int:
    """The wider of dense layers and those with experts. The last layer has output rows only."""
    dense = _dense(shape, graph, launch, cached) * F32
    if not graph.expert_width:
        return dense * tokens
    experts = _experts(shape, graph)
    rows = tokens if graph.dense_layers < shape.n_layer - 1 else last
    return max(dense * tokens if graph.dense_layers or graph.alternates else 0, experts * rows)


def _recurrence(layout: MemoryLayout, graph: GraphShape, tokens: int, sequences: int, mask: int) -> int:
    """What a recurrent layer holds at once. Behind the last attention it has the place of the masks."""
    if graph.recurrence is None:
        return 0
    size = recurrent_elements(graph.recurrence, tokens, sequences) * F32
    attention = max((layer for cache in layout.caches for layer in cache.layers), default=-1)
    first = min((layer for state in layout.states for layer in state.layers), default=0)
    return max(0, size - mask) if 0 <= attention < first else size


def _crossing(layout: MemoryLayout, graph: GraphShape, tokens: int, hidden: int) -> Crossing | None:
    layer = graph.recurrence
    if layer is None or layer.passed_on is None:
        return None
    onward, back = layer.passed_on
    return Crossing(
        layers=frozenset(index for state in layout.states for index in state.layers),
        onward=onward * tokens * F32,
        back=back * tokens * F32,
        spared=0 if layer.kind == "rwkv6" else hidden,
    )


def _reused(graph: GraphShape, caches: tuple[KvCache, ...]) -> tuple[tuple[int, int], ...]:
    if not graph.per_layer_input:
        return ()
    return tuple(
        (cache.layout.layers[-1], (cache.k_bytes + cache.v_bytes) // len(cache.layout.layers)) for cache in caches
    )


def _mask_users(shape: Hyperparameters, layout: MemoryLayout, caches: tuple[KvCache, ...]) -> list[frozenset[int]]:
    """The layers that use the mask of each cache; those of no cache share another's, unless the model has states."""
    users = [frozenset(cache.layout.layers) for cache in caches]
    others = frozenset() if layout.states else frozenset(range(shape.n_layer)).difference(*users)
    return [one | others for one in users]


def _dense(shape: Hyperparameters, graph: GraphShape, launch: Launch, cached: bool) -> int:
    """Two projections and their product, which takes a place that attention left where it is small enough. Below
    that, attention itself is the peak.
    """
    width, hidden = graph.width, shape.n_embd
    rotated = is_rotated(launch.cache_type_k, shape.head_k)
    # Two hidden states next to each other are free, unless attention put them elsewhere.
    apart = graph.fused or is_rotated(launch.cache_type_v, shape.head_v)
    finds_place = cached and width <= (hidden if apart else 2 * hidden)
    copies = 3 - finds_place if graph.gated else 1
    attention = (3 + rotated if graph.fused else 2) * hidden
    return max(copies * width, attention if width and cached else 0)


def _gap(shape: Hyperparameters, graph: GraphShape) -> int:
    """Elements of one token: where two projections are too small for the results, a third is not used again."""
    width = shape.n_expert_used * graph.expert_width
    return width if shape.n_expert_used * shape.n_embd > 2 * width else 0


def _experts(shape: Hyperparameters, graph: GraphShape) -> int:
    """Three projections, and the results where two of those are too small to make room for them."""
    width = graph.expert_width
    results = shape.n_expert_used * shape.n_embd
    beside = results if results > 2 * shape.n_expert_used * width else 0
    shared = shape.n_embd if graph.shared_expert and not beside else 0
    return (3 * shape.n_expert_used * width + beside + shared) * F32


def _value_index(shape: Hyperparameters, tokens: int, caches: int) -> int:
    widest = max(map(shape.n_embd_v_gqa, range(shape.n_layer)))
    return 8 * tokens * widest * caches


def _rotation(shape: Hyperparameters, launch: Launch, caches: int) -> int:
    """One matrix per cache for K (the largest power of two times 64 that divides the head) and V (64)."""
    size = 0
    if is_rotated(launch.cache_type_k, shape.head_k):
        width = ROTATION_MULTIPLE
        while shape.head_k % (width * 2) == 0:
            width *= 2
        size += width * width * F32
    if is_rotated(launch.cache_type_v, shape.head_v):
        size += ROTATION_MULTIPLE**2 * F32
    return size * caches
