"""The KV cache: its cells, its layers, its bytes.

Source: `src/llama-kv-cache.cpp` (constructor), `src/llama-kv-cache-iswa.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.hardware import CPU_DEVICE
from planner.launch import CONTEXT_MULTIPLE, Launch, ResolvedContext
from planner.memory.plan import Allocation
from planner.model.ggml_types import type_named
from planner.model.hyperparameters import Hyperparameters
from planner.units import pad


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """One cache as llama.cpp creates it; a model with sliding windows has two."""

    name: str
    """`KV`, or `non-SWA KV` and `SWA KV` as in llama.cpp's log."""
    windowed: bool
    cells: int
    """Tokens it holds, per stream."""
    n_stream: int
    layers: tuple[int, ...]
    k_row_bytes: int
    """Bytes of one token's keys over all its layers."""
    v_row_bytes: int
    """Bytes of one token's values over all its layers."""

    @property
    def k_bytes(self) -> int:
        """All keys."""
        return self.k_row_bytes * self.cells * self.n_stream

    @property
    def v_bytes(self) -> int:
        """All values."""
        return self.v_row_bytes * self.cells * self.n_stream

    @property
    def total_bytes(self) -> int:
        """Keys and values."""
        return self.k_bytes + self.v_bytes


def kv_caches(shape: Hyperparameters, launch: Launch, context: ResolvedContext) -> tuple[KvCache, ...]:
    """The caches of a launch, the one without a window first, as llama.cpp creates them."""
    everywhere = tuple(range(shape.n_layer))
    if not any(shape.swa_layers):
        return (_cache("KV", False, everywhere, context.n_ctx_seq, shape, launch, context),)
    dense = tuple(layer for layer in everywhere if not shape.swa_layers[layer])
    windowed = tuple(layer for layer in everywhere if shape.swa_layers[layer])
    cells = swa_cells(shape.n_swa, launch, context)
    return (
        _cache("non-SWA KV", False, dense, context.n_ctx_seq, shape, launch, context),
        _cache("SWA KV", True, windowed, cells, shape, launch, context),
    )


def swa_cells(n_swa: int, launch: Launch, context: ResolvedContext) -> int:
    """Cells per stream of a sliding-window cache: the windows of its slots and one ubatch."""
    if launch.swa_full:
        return context.n_ctx_seq
    sequences = context.n_seq_max if context.n_stream == 1 and launch.unified else 1
    return pad(min(context.n_ctx_seq, n_swa * sequences + context.n_ubatch), CONTEXT_MULTIPLE)


def _cache(
    name: str,
    windowed: bool,
    layers: tuple[int, ...],
    cells: int,
    shape: Hyperparameters,
    launch: Launch,
    context: ResolvedContext,
) -> KvCache:
    v_row = _v_row(shape, launch)
    return KvCache(
        name=name,
        windowed=windowed,
        cells=cells,
        n_stream=context.n_stream,
        layers=layers,
        k_row_bytes=sum(type_named(launch.cache_type_k).row_bytes(shape.n_embd_k_gqa(layer)) for layer in layers),
        v_row_bytes=sum(v_row(layer) for layer in layers),
    )


def _v_row(shape: Hyperparameters, launch: Launch) -> Callable[[int], int]:
    value_type = type_named(launch.cache_type_v)
    if launch.flash_attn == "off":
        # Without flash attention V is stored transposed, every layer as wide as the widest of the model.
        widest = value_type.row_bytes(max(shape.n_embd_v_gqa(layer) for layer in range(shape.n_layer)))
        return lambda _layer: widest
    return lambda layer: value_type.row_bytes(shape.n_embd_v_gqa(layer))


def plan_kv(caches: tuple[KvCache, ...]) -> list[Allocation]:
    """One allocation per cache. llama.cpp clears its caches at start, so they are resident at once."""
    return [
        Allocation(
            device=CPU_DEVICE,
            component="kv",
            buffer=cache.name,
            reserved_bytes=cache.total_bytes,
            resident_bytes=cache.total_bytes,
            certainty="exact",
            reason=(
                f"{cache.cells:,} cells x {cache.n_stream} stream{'s' if cache.n_stream > 1 else ''} x "
                f"({cache.k_row_bytes:,} + {cache.v_row_bytes:,}) bytes of K and V per token "
                f"over {len(cache.layers)} layers"
            ),
        )
        for cache in caches
        if cache.layers
    ]


def kv_refusal(shape: Hyperparameters, launch: Launch) -> str:
    """Why llama.cpp would not create this cache, and the way out; empty when it would.

    Source: `src/llama-context.cpp: llama_init_from_model`.
    """
    key, value = type_named(launch.cache_type_k), type_named(launch.cache_type_v)
    if launch.flash_attn == "off" and value.is_quantised:
        return (
            f"llama.cpp refuses a {value.name} V cache without flash attention: "
            "leave --flash-attn at auto, or use --cache-type-v f16."
        )
    heads = (("K", key, shape.head_k, "k"), ("V", value, shape.head_v, "v"))
    if launch.flash_attn != "off":
        for letter, cache_type, head, flag in heads:
            if cache_type.is_quantised and head % cache_type.block_elements:
                return (
                    f"llama.cpp refuses a {cache_type.name} {letter} cache for heads of {head} elements, which "
                    f"are not whole blocks of {cache_type.block_elements}: use --cache-type-{flag} f16."
                )
    for letter, cache_type, flag, rows in (
        ("K", key, "k", [shape.n_embd_k_gqa(layer) for layer in range(shape.n_layer)]),
        ("V", value, "v", [shape.n_embd_v_gqa(layer) for layer in range(shape.n_layer)]),
    ):
        if any(row % cache_type.block_elements for row in rows):
            return (
                f"A {letter} row of this model is not whole blocks of {cache_type.name}: "
                f"use --cache-type-{flag} f16."
            )
    return ""
