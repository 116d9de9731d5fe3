"""The moments inside attention at which a compute buffer can be fullest, by kind of attention.

Source: `src/llama-graph.cpp: build_attn_mha`, `src/models/deepseek*.cpp`, `minimax-m3.cpp`.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.launch import Launch, ResolvedContext
from planner.memory.kv import F32, KvCache
from planner.model.ggml_types import type_named
from planner.model.graph import GraphShape
from planner.model.hyperparameters import Hyperparameters
from planner.units import pad

F16 = 2
ROTATION_MULTIPLE = 64
"""Heads of whole multiples of this many elements are rotated (Hadamard) before they are quantised."""
POOLED_SCORES = {"qwen4exp": 6.0, "glm5-next": 3.6}
"""Scores of an indexer over pools of tokens alive at once, per sequence: of one F32 mask each."""
_COMPRESSED_STATES = 27
"""Hidden states inside DeepSeek-V4's attention, with its hyper-connections."""


def attention_peak(
    family: str,
    shape: Hyperparameters,
    graph: GraphShape,
    launch: Launch,
    context: ResolvedContext,
    tokens: int,
    cells: Sequence[int],
    flash: bool,
) -> int:
    scores = max(cells, default=0) * tokens * F32
    hidden = shape.n_embd * tokens * F32
    if family == "pooled":
        return int(POOLED_SCORES[graph.architecture] * context.n_seq_max * scores)
    if family == "compressed":
        return _compressed(shape, tokens, cells, hidden, flash)
    if family == "sparse":
        return _sparse(shape, graph, tokens, scores, picked_tokens(graph, tokens, cells), flash)
    if family == "blocks" and flash and (context.n_seq_max == 1 or context.n_stream > 1):
        # The mask as F32, and of every stream in turn the scores of each head of the indexer, twice.
        queries = max(shape.n_head) * shape.head_k * tokens * F32
        return scores + 2 * graph.index_heads * scores // context.n_stream + 2 * queries
    if shape.is_mla:
        return _latent(shape, tokens) + (0 if flash else max(shape.n_head) * scores)
    return 0 if flash or not cells else _scores(shape, graph, launch, tokens, max(cells))


def copied_caches(
    family: str,
    shape: Hyperparameters,
    graph: GraphShape,
    launch: Launch,
    context: ResolvedContext,
    caches: tuple[KvCache, ...],
    flash: bool,
) -> int:
    """Copies of one layer's cache (`build_attn_mha`): F32 as F16 for flash attention, latent values without."""
    if flash:
        keys, values = launch.cache_type_k == "f32", launch.cache_type_v == "f32"
        copied = as_f16(caches, keys, values) if family != "blocks" else 0
        return copied + _wide_queries(shape, graph, context) if copied and not shape.is_mla else copied
    return _latent_values(shape, launch, context, caches) if shape.is_mla else 0


def query_bytes(shape: Hyperparameters, tokens: int) -> int:
    """The queries of one layer, of the kind whose heads are wider."""
    return max(shape.n_head) * max(shape.head_k, shape.head_k_swa) * tokens * F32


def _wide_queries(shape: Hyperparameters, graph: GraphShape, context: ResolvedContext) -> int:
    """Queries and results wider than a hidden state find no place beside the copies, nor do gates of that size."""
    tokens = pad(min(context.n_ctx, context.n_ubatch), context.n_seq_max)
    queries = query_bytes(shape, tokens)
    return (2 + 2 * graph.gated_attention) * queries if queries > shape.n_embd * tokens * F32 else 0


def as_f16(caches: tuple[KvCache, ...], keys: bool, values: bool) -> int:
    """Bytes of the keys and values of one layer as F16, in the largest cache."""
    if not (keys or values):
        return 0
    return F16 * max(
        (
            cache.cells
            * cache.n_stream
            * (keys * max(cache.layout.k_elements) + values * max(cache.layout.v_elements or cache.layout.k_elements))
            for cache in caches
            if cache.layout.layers
        ),
        default=0,
    )


def _latent(shape: Hyperparameters, tokens: int) -> int:
    """MLA: queries in their own size, and twice in that of the latent keys; or with these the keys, for few heads."""
    heads = max(shape.n_head)
    queries = heads * (shape.head_k_mla + 2 * shape.head_k)
    return max(queries, heads * (shape.head_v + shape.head_k) + shape.head_k) * tokens * F32


def _latent_values(
    shape: Hyperparameters, launch: Launch, context: ResolvedContext, caches: tuple[KvCache, ...]
) -> int:
    """Without flash attention the values, a view of the keys, are copied to be transposed: beyond what queries take."""
    key_type = type_named(launch.cache_type_k)
    row = shape.head_v * key_type.block_bytes // key_type.block_elements
    copied = max((cache.cells * cache.n_stream for cache in caches), default=0) * row
    tokens = pad(min(context.n_ctx, context.n_ubatch), context.n_seq_max)
    return max(0, copied - max(shape.n_head) * tokens * F32 * (shape.head_k_mla + shape.head_k))


def picked_tokens(graph: GraphShape, tokens: int, cells: Sequence[int]) -> int:
    """What a sparse layer picks: as many tokens as there are at most."""
    return min(graph.index_top_k, max(cells, default=0)) * tokens * F32


def indexer_scores(
    family: str, shape: Hyperparameters, graph: GraphShape, tokens: int, cells: Sequence[int], flash: bool
) -> int:
    """What of a sparse attention's peak are scores of its indexer that fit into the place of its queries."""
    if family != "sparse" or not flash:
        return 0
    scores = max(cells, default=0) * tokens * F32
    return scores if _scores_fit(shape, tokens, scores) else 0


def _queries_place(shape: Hyperparameters, tokens: int) -> int:
    """What queries in their own size and in that of the latent keys leave, which the indexer's queries take and then
    the mask.
    """
    return max(shape.n_head) * tokens * F32 * (shape.head_k_mla + shape.head_k)


def _scores_fit(shape: Hyperparameters, tokens: int, scores: int) -> bool:
    """Whether that place holds the results of attention beside the scores of the indexer."""
    return _queries_place(shape, tokens) - scores >= max(shape.n_head) * tokens * F32 * shape.head_v


def _sparse(shape: Hyperparameters, graph: GraphShape, tokens: int, scores: int, picked: int, flash: bool) -> int:
    """DeepSeek sparse attention: what the indexer scores and picks, or the attention behind it."""
    per_head = max(shape.n_head) * tokens * F32
    queries, results = per_head * shape.head_k, per_head * shape.head_v
    place = _queries_place(shape, tokens)
    indexed = graph.index_heads * graph.index_width * tokens * F32
    indexer = max(place, indexed) + queries + scores + (picked if picked > place else 0)
    if flash:
        attended = place if _scores_fit(shape, tokens, scores) else max(place, scores) + results
        return max(indexer, attended + queries)
    return max(indexer, max(place, 2 * indexed) + queries + max(shape.n_head) * scores)


def _compressed(shape: Hyperparameters, tokens: int, cells: Sequence[int], hidden: int, flash: bool) -> int:
    """DeepSeek-V4: the window and the compressed tokens at once, and what its indexer scores."""
    states = _COMPRESSED_STATES * hidden
    if not flash:
        return states - 5 * hidden + max(shape.n_head) * tokens * F32 * (cells[0] + max(cells[1:], default=0))
    return states + 2 * cells[-1] * tokens * F32


def _scores(shape: Hyperparameters, graph: GraphShape, launch: Launch, tokens: int, cells: int) -> int:
    scores = max(shape.n_head) * tokens * cells * F32
    queries = query_bytes(shape, tokens)
    # Rotated queries take the place of the plain ones; results wider than a hidden state find no free place.
    rotated = is_rotated(launch.cache_type_k, shape.head_k)
    copies = 1 - rotated + (queries > shape.n_embd * tokens * F32) + graph.gated_attention * (3 if rotated else 1)
    return scores + copies * queries


def is_rotated(cache_type: str, head: int) -> bool:
    return type_named(cache_type).is_quantised and head > 0 and head % ROTATION_MULTIPLE == 0
