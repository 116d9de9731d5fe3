"""Context memory: the cells and bytes of every KV cache, and the state that does not depend on the context.

Source: `src/llama-kv-cache.cpp` (constructor), `src/llama-kv-cache-iswa.cpp`, `src/llama-memory-recurrent.cpp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from planner.hardware import kind_of_device
from planner.launch import CONTEXT_MULTIPLE, Launch, ResolvedContext
from planner.memory.backends import BACKENDS
from planner.memory.placement import Placement
from planner.memory.plan import Allocation, Component
from planner.model.ggml_types import GgmlType, type_named
from planner.model.hyperparameters import Hyperparameters
from planner.model.layout import CacheLayout, MemoryLayout, Span, StateLayout
from planner.units import pad

F32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """One cache of a launch."""

    layout: CacheLayout
    cells: int
    """Tokens it holds, per stream."""
    n_stream: int
    k_row_bytes: int
    """Bytes of one token's keys over all its layers."""
    v_row_bytes: int
    """Bytes of one token's values over all its layers; 0 where values are a view of the keys."""
    v_width: int
    """Elements of V that every layer takes because V is transposed; 0 where each takes its own."""

    @property
    def name(self) -> str:
        """`KV`, `SWA KV`, ..."""
        return self.layout.name

    @property
    def windowed(self) -> bool:
        """Whether it holds a sliding window only."""
        return self.layout.span is Span.WINDOW

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


def flash_attention(layout: MemoryLayout, launch: Launch) -> bool:
    """Whether flash attention will be on. On the processor `auto` always resolves to on where it can."""
    return layout.flash_attention and launch.flash_attn != "off"


def kv_caches(layout: MemoryLayout, launch: Launch, context: ResolvedContext) -> tuple[KvCache, ...]:
    """The caches of a launch, in the order in which llama.cpp creates them."""
    flash = flash_attention(layout, launch)
    v_width = 0 if flash else layout.widest_v
    return tuple(_cache(cache, layout, launch, context, v_width) for cache in layout.caches)


def _cache(cache: CacheLayout, layout: MemoryLayout, launch: Launch, context: ResolvedContext, v_width: int) -> KvCache:
    key_type, value_type = type_named(launch.cache_type_k), type_named(launch.cache_type_v)
    # Without flash attention V is stored transposed, every layer as wide as the widest of the model.
    width = v_width if cache.v_full_width and cache.v_elements else 0
    v_elements = width * len(cache.v_elements) if width else sum(cache.v_elements)
    return KvCache(
        layout=cache,
        cells=_cells(cache, layout.n_swa, launch, context),
        n_stream=context.n_seq_max if cache.always_divided else context.n_stream,
        k_row_bytes=key_type.row_bytes(sum(cache.k_elements)),
        v_row_bytes=value_type.row_bytes(v_elements),
        v_width=width,
    )


def _cells(cache: CacheLayout, n_swa: int, launch: Launch, context: ResolvedContext) -> int:
    if cache.span is Span.COMPRESSED:
        return pad(-(-context.n_ctx_seq // cache.ratio), CONTEXT_MULTIPLE)
    if cache.span is Span.CONTEXT or launch.swa_full:
        return context.n_ctx_seq
    # The windows of the slots that share it, and one ubatch.
    sharing = context.n_seq_max if launch.unified and not cache.always_divided else 1
    return pad(min(context.n_ctx_seq, n_swa * sharing + context.n_ubatch), CONTEXT_MULTIPLE)


def plan_kv(caches: tuple[KvCache, ...], launch: Launch, placement: Placement) -> list[Allocation]:
    """One allocation per cache and device. llama.cpp clears its caches at start: they are resident at once."""
    types = type_named(launch.cache_type_k), type_named(launch.cache_type_v)
    allocations = []
    for cache in caches:
        for device, positions in _by_device(cache.layout.layers, placement).items():
            size = _cache_bytes(cache, device, positions, *types)
            allocations.append(_allocation(device, "kv", cache.name, size, _cache_reason(cache, len(positions))))
    return allocations


def _allocation(device: str, component: Component, buffer: str, size: int, reason: str) -> Allocation:
    """Estimated only where a back end's own rules were read and not run."""
    verified = BACKENDS[kind_of_device(device)].verified
    return Allocation(
        device=device,
        component=component,
        buffer=buffer,
        reserved_bytes=size,
        resident_bytes=size,
        certainty="exact" if verified else "estimated",
        reason=reason if verified else f"{reason} (padding from llama.cpp's source, not verified on hardware)",
    )


def _cache_bytes(
    cache: KvCache, device: str, positions: tuple[int, ...], key_type: GgmlType, value_type: GgmlType
) -> int:
    backend = BACKENDS[kind_of_device(device)]
    if len(positions) == len(cache.layout.layers) and not backend.pads_rows:
        # Rows of whole blocks times cells in multiples of 256 are aligned for every back end.
        return cache.total_bytes
    tokens = cache.cells * cache.n_stream
    size = 0
    for position in positions:
        rows = [(cache.layout.k_elements[position], key_type)]
        if cache.layout.v_elements:
            rows.append((cache.v_width or cache.layout.v_elements[position], value_type))
        size += sum(
            backend.tensor_bytes(elements, ggml_type.row_bytes(elements) * tokens, ggml_type)
            for elements, ggml_type in rows
        )
    return size


def _cache_reason(cache: KvCache, layers: int) -> str:
    streams = f"{cache.n_stream} stream{'s' if cache.n_stream > 1 else ''}"
    everywhere = len(cache.layout.layers)
    part = f"{layers} of its {everywhere} layers, of" if layers < everywhere else f"{everywhere} layers:"
    return (
        f"{part} {cache.cells:,} cells x {streams} x ({cache.k_row_bytes:,} + {cache.v_row_bytes:,}) bytes of K "
        "and V per token"
    )


@lru_cache(maxsize=256)
def _by_device(layers: tuple[int, ...], placement: Placement) -> dict[str, tuple[int, ...]]:
    """The positions in `layers` that lie on each device."""
    positions: dict[str, list[int]] = {}
    for position, layer in enumerate(layers):
        positions.setdefault(placement.cache_layers[layer], []).append(position)
    return {device: tuple(found) for device, found in positions.items()}


def state_bytes(state: StateLayout, context: ResolvedContext) -> int:
    """Bytes of a state for all slots. Always F32, and every slot has its own, with earlier ones to go back to."""
    return state.elements * F32 * context.n_seq_max * (1 + context.n_rs_seq * state.rolls_back)


def _planes(state: StateLayout, context: ResolvedContext) -> str:
    planes = 1 + context.n_rs_seq * state.rolls_back
    return f"{planes} planes to roll back to x " if planes > 1 else ""


def plan_states(layout: MemoryLayout, context: ResolvedContext, placement: Placement) -> list[Allocation]:
    """One allocation per state and device. llama.cpp clears them at start: they are resident at once."""
    allocations = []
    for state in layout.states:
        for device, positions in _by_device(state.layers, placement).items():
            # Every layer keeps the same.
            size = state_bytes(state, context) // len(state.layers) * len(positions)
            reason = (
                f"{context.n_seq_max} slots x {_planes(state, context)}{state.elements // len(state.layers):,} F32 "
                f"elements x {len(positions)} layers, whatever the context"
            )
            allocations.append(_allocation(device, "state", state.name, size, reason))
    return allocations


def kv_refusal(shape: Hyperparameters, layout: MemoryLayout, launch: Launch) -> str:
    """Why llama.cpp would not create this cache, and the way out; empty when it would.

    Source: `src/llama-context.cpp: llama_init_from_model`.
    """
    # llama.cpp asks before it knows whether the model keeps a cache at all.
    key, value = type_named(launch.cache_type_k), type_named(launch.cache_type_v)
    if layout.one_cache_type and key is not value:
        return (
            f"llama.cpp refuses different types for K ({key.name}) and V ({value.name}) on this model: "
            f"use --cache-type-v {key.name}."
        )
    if value.is_quantised and not flash_attention(layout, launch):
        if not layout.flash_attention:
            return f"This model cannot use flash attention, so V cannot be {value.name}: use --cache-type-v f16."
        return (
            f"llama.cpp refuses a {value.name} V cache without flash attention: "
            "leave --flash-attn at auto, or use --cache-type-v f16."
        )
    if launch.flash_attn != "off":
        heads = [("k", key, shape.head_k), ("v", value, shape.head_v)]
        if any(shape.swa_layers):
            heads += [("k", key, shape.head_k_swa), ("v", value, shape.head_v_swa)]
        for letter, cache_type, head in heads:
            if head % cache_type.block_elements:
                return _not_whole(letter, cache_type, f"heads of {head} elements")
    return _row_refusal(layout, key, value)


def _row_refusal(layout: MemoryLayout, key: GgmlType, value: GgmlType) -> str:
    for cache in layout.caches:
        for letter, cache_type, rows in (("k", key, cache.k_elements), ("v", value, cache.v_elements)):
            for row in rows:
                if row % cache_type.block_elements:
                    return _not_whole(letter, cache_type, f"rows of {row} elements")
    return ""


def _not_whole(letter: str, cache_type: GgmlType, what: str) -> str:
    return (
        f"llama.cpp refuses a {cache_type.name} {letter.upper()} cache for {what}, which are not whole blocks of "
        f"{cache_type.block_elements}: use --cache-type-{letter} f16."
    )
