"""The tensors of a graph that decide its compute buffer, in closed form.

One small function for each moment at which a buffer can be fullest: attention (`attention.py`), feed-forward,
experts, recurrence (`recurrence.py`), logits. What is written as a number of hidden states was read off buffers
that llama.cpp reserved for full-size models.

Source: `src/llama-graph.cpp`, `src/models/*.cpp`; `src/llama-context.cpp` (`sched_reserve`, `graph_reserve`).
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.launch import Launch, ResolvedContext
from planner.memory.attention import (
    F16,
    POOLED_SCORES,
    ROTATION_MULTIPLE,
    attention_peak,
    copied_caches,
    indexer_scores,
    is_rotated,
    picked_tokens,
    query_bytes,
)
from planner.memory.kv import F32, KvCache, flash_attention
from planner.memory.peaks import Crossing, GraphSizes, Reused
from planner.memory.recurrence import recurrent_elements
from planner.model.graph import GraphShape
from planner.model.hyperparameters import Hyperparameters
from planner.model.layout import MemoryLayout
from planner.units import pad

_FEW_LAYERS = 2
_UNPICKED = {"mamba": 2, "mamba2": 2, "rwkv6": 1, "gemma3n": 14}
"""Hidden states of all tokens that the output gets: rows are picked behind the last weight of the last layer."""
_STREAMED = "gemma3n"
"""Its four streams lie elsewhere where several devices, or one and the host, share the layers."""


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
        one_expert=graph.shared_expert and shape.n_expert_used == 1,
        dense_layers=graph.dense_layers,
        layers=shape.n_layer,
        reused=_reused(shape, graph, masked),
        picked=picked_tokens(graph, tokens, cells) if family == "sparse" else 0,
        streams=graph.hyper_connections,
        recurrence=recurrence,
        convolved=graph.recurrence.mixed * tokens * F32 if graph.recurrence else 0,
        crossing=_crossing(layout, graph, tokens, hidden),
        queries=query_bytes(shape, tokens),
        gap=_gap(shape, graph) * tokens * F32,
        attention=attention_peak(family, shape, graph, launch, context, tokens, cells, flash)
        + copied_caches(family, shape, graph, launch, context, masked, flash),
        scored=indexer_scores(family, shape, graph, tokens, cells, flash),
        hole=_hole(shape, layout, graph, tokens) if flash else 0,
        spread=((-6, 3) if flash else (5, 6)) if graph.architecture == _STREAMED else (0, 0),
        logits=shape.n_vocab * outputs * F32 + pooled,
        unpicked=_UNPICKED.get(graph.architecture, 0) * hidden,
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


def _reused(shape: Hyperparameters, graph: GraphShape, caches: tuple[KvCache, ...]) -> tuple[Reused, ...]:
    if not graph.per_layer_input:
        return ()
    found = []
    for cache in caches:
        layer = cache.layout.layers[-1]
        alike = (other for other in range(shape.n_layer) if shape.swa_layers[other] == shape.swa_layers[layer])
        size = (cache.k_bytes + cache.v_bytes) // len(cache.layout.layers)
        found.append(Reused(layer=layer, readers=frozenset(alike).difference(cache.layout.layers), size=size))
    return tuple(found)


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


def _hole(shape: Hyperparameters, layout: MemoryLayout, graph: GraphShape, tokens: int) -> int:
    """Of queries that nothing of their size follows; of the results of experts as wide as they are."""
    hidden = shape.n_embd * tokens * F32
    queries = query_bytes(shape, tokens)
    attends = {layer for cache in layout.caches for layer in cache.layers}
    if not attends.isdisjoint(layer for state in layout.states for layer in state.layers):
        return hidden + queries  # attention beside a recurrence, in one layer (Falcon-H1)
    if graph.per_layer_input and graph.architecture != _STREAMED:
        return queries
    return 2 * hidden if graph.expert_width == shape.n_embd else 0


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
