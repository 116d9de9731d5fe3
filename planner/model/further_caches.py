"""Caches that a few architectures keep beside the usual ones: indexers of sparse attention, compressed copies.

Source: `src/llama-kv-cache-dsa.cpp`, `-msa.cpp`, `-dsv4.cpp`, `src/llama-memory-hybrid-idx.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from planner.errors import ModelError
from planner.model.hyperparameters import Hyperparameters, Keys
from planner.model.layout import CacheLayout, MemoryLayout, Span, StateLayout

FurtherCaches = Callable[[Keys, Hyperparameters, MemoryLayout], MemoryLayout]
"""From the usual layout to the one with everything."""

IndexerLayers = Literal["all", "types", "types or period"]
"""Which layers index: all, those that `indexer.types` marks, or by a period where the file has no types."""

LONG_CONTEXT = 1 << 20
"""From this trained context on, GLM with sparse attention indexes only some of its layers by default."""


def sparse_indexer(rule: IndexerLayers) -> FurtherCaches:
    """DeepSeek sparse attention: one key head of the indexer, on the layers that index. Nothing without top-k."""

    def further(keys: Keys, shape: Hyperparameters, layout: MemoryLayout) -> MemoryLayout:
        if not keys.integer("attention.indexer.top_k", 0):
            return layout
        layers = tuple(layer for layer in _indexing(rule, keys, shape) if not shape.swa_layers[layer])
        row = keys.integer("attention.indexer.key_length")
        return replace(
            layout,
            caches=(*layout.caches, _key_cache("indexer KV", layers, row)),
            # Blocks that predict further tokens do not index, and keep the whole context where others window.
            ahead=tuple(replace(cache, span=Span.CONTEXT) for cache in layout.ahead),
        )

    return further


def kv_indexer(keys: Keys, shape: Hyperparameters, layout: MemoryLayout) -> MemoryLayout:
    """MiniMax-M3: the indexer caches one key and one value head on every layer behind the dense ones."""
    layers = tuple(range(keys.integer("leading_dense_block_count", 0), shape.n_layer_all))
    row = keys.integer("attention.indexer.key_length")
    indexer = replace(
        _key_cache("indexer KV", layers, row), v_elements=(shape.head_v,) * len(layers), v_full_width=False
    )
    return replace(layout, caches=(*layout.caches, indexer))


def hybrid_indexer(keys: Keys, shape: Hyperparameters, layout: MemoryLayout) -> MemoryLayout:
    """Hybrids whose attention layers index: Qwen4 (and its n-gram rows), GLM-5-Next."""
    attention = tuple(sorted({layer for cache in layout.caches for layer in cache.layers}))
    ahead = tuple(range(shape.n_layer, shape.n_layer_all))
    row = keys.integer("attention.indexer.key_length")
    states = layout.states
    if keys.architecture == "glm5-next":
        row *= 3
        marked = keys.flags("attention.indexer.types", shape.n_layer)
        attention = tuple(layer for layer in attention if marked is None or marked[layer])
    else:
        row *= 2 if keys.largest("attention.compress_ratios") else 1
        states = (*states, *_ngram_state(keys, shape))
    return replace(
        layout,
        caches=(*layout.caches, _key_cache("indexer KV", attention, row)),
        states=states,
        ahead=(*layout.ahead, _key_cache("indexer KV", ahead, row)) if ahead else (),
    )


def compressed_caches(keys: Keys, shape: Hyperparameters, layout: MemoryLayout) -> MemoryLayout:
    """DeepSeek-V4: a window, and compressed copies of what lies behind it, all divided and without values."""
    ratios = keys.per_layer("attention.compress_ratios", shape.n_layer_all, longer=True)
    fours = tuple(layer for layer in range(shape.n_layer) if ratios[layer] == 4)
    many = tuple(layer for layer in range(shape.n_layer) if ratios[layer] == 128)
    row, index_row = shape.n_embd_k_gqa(0), keys.integer("attention.indexer.key_length")
    caches = (
        *(replace(cache, v_elements=(), always_divided=True) for cache in layout.caches),
        _compressed("CSA KV", fours, row, 4),
        _compressed("HCA KV", many, row, 128),
        _compressed("indexer KV", fours, index_row, 4),
    )
    states = (
        _compressor("CSA", fours, 2 * 2 * shape.head_k * 8),
        _compressor("HCA", many, 2 * shape.head_k * 128),
        _compressor("LID", fours, 2 * 2 * index_row * 8),
    )
    return replace(
        layout,
        caches=tuple(cache for cache in caches if cache.layers),
        states=tuple(state for state in states if state.layers),
        one_cache_type=True,
    )


def _indexing(rule: IndexerLayers, keys: Keys, shape: Hyperparameters) -> tuple[int, ...]:
    everything = tuple(range(shape.n_layer))
    if rule == "all":
        return everything
    marked = keys.flags("attention.indexer.types", shape.n_layer)
    if marked is None and rule == "types or period" and shape.n_ctx_train >= LONG_CONTEXT:
        return tuple(layer for layer in everything if layer < 2 or (layer - 2) % 4 == 0)
    return everything if marked is None else tuple(layer for layer in everything if marked[layer])


def _key_cache(name: str, layers: tuple[int, ...], row: int) -> CacheLayout:
    return CacheLayout(name=name, layers=layers, k_elements=(row,) * len(layers), v_elements=())


def _compressed(name: str, layers: tuple[int, ...], row: int, ratio: int) -> CacheLayout:
    cache = _key_cache(name, layers, row)
    return replace(cache, span=Span.COMPRESSED, ratio=ratio, always_divided=True)


def _compressor(name: str, layers: tuple[int, ...], elements: int) -> StateLayout:
    return StateLayout(name=f"DSV4 {name}", layers=layers, elements=elements * len(layers))


def _ngram_state(keys: Keys, shape: Hyperparameters) -> tuple[StateLayout, ...]:
    """Qwen4's per-layer embeddings: the last few n-gram rows of every hyper-connection."""
    value = keys.metadata.get(f"{keys.architecture}.ple.layers")
    if not isinstance(value, tuple) or not value:
        return ()
    row = (keys.at_least("ple.conv_kernel", 1) - 1) * keys.integer("ple.ngram_size")
    elements = row * keys.integer("hyper_connection.count") * shape.n_embd
    layers = tuple(int(layer) for layer in value if isinstance(layer, int) and 0 <= layer < shape.n_layer)
    if len(layers) < len(value):
        raise ModelError(f"{keys.architecture}.ple.layers names layers that the model does not have.")
    return (StateLayout(name="PLE", layers=layers, elements=elements * len(layers)),)
