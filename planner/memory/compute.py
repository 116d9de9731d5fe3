"""Compute and output buffers, in closed form.

llama.cpp lays its graph out with a best-fit allocator (`ggml/src/ggml-alloc.c`), so a buffer is the largest
sum of tensors alive at once. For a transformer that is one of a few moments: inside attention, inside the
feed-forward, or at the logits. `tests/data/server_compute.csv` holds what a llama-server reserved for plain
transformers on the CPU; the forms below meet it within 1 %. Everything else is further off, and its range
says so.

Source: `src/llama-context.cpp` (`sched_reserve`, `graph_reserve`, `output_reserve`), `src/llama-graph.cpp`.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.hardware import CPU_DEVICE, kind_of_device
from planner.launch import Launch, ResolvedContext
from planner.memory.kv import F32, KvCache, flash_attention
from planner.memory.placement import Placement
from planner.memory.plan import Allocation
from planner.model.ggml_types import type_named
from planner.model.hyperparameters import Hyperparameters
from planner.model.layout import MemoryLayout
from planner.units import format_mib, pad

F16 = 2
TOLERANCE = 0.03
"""How far the formula may be off for plain transformers on the CPU, as a fraction."""
WIDE_TOLERANCE = 0.25
"""The same for experts, latent attention, and accelerators."""
LOOSE_TOLERANCE = 0.6
"""The same where the graph holds a recurrence, an indexer or an encoder."""

_ROTATION_MULTIPLE = 64
"""Heads of whole multiples of this many elements are rotated (Hadamard) before they are quantised."""
_PIPELINE_COPIES = 4
"""GGML_SCHED_MAX_COPIES: copies of every input while several devices work as a pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSizes:
    """Bytes of the tensors that decide the compute buffer, for one ubatch."""

    tokens: int
    """Tokens computed at once, rounded up to whole slots."""
    mask: int
    """All attention masks."""
    hidden: int
    """One hidden state."""
    feed_forward: int
    """Peak inside the feed-forward."""
    attention: int
    """Peak inside attention without flash attention: the scores and what lives beside them; else 0."""
    logits: int
    rotation: int
    """Hadamard matrices of quantised caches."""
    index: int
    """Element indices of a transposed V cache (no flash attention)."""
    inputs: int
    """Token ids, positions, and the cells that each cache writes to."""

    @property
    def host_total(self) -> int:
        """The buffer of a host that computes everything: inputs, hidden states, the highest of three peaks."""
        base = self.shared + 5 * self.hidden
        # The masks, the rotation and three hidden states beside them are free when the logits are computed:
        # logits that fit into their place cost nothing.
        logits = self.logits if self.logits > self.mask + self.rotation + 3 * self.hidden else 0
        return base + max(self.feed_forward, self.attention, logits)

    @property
    def shared(self) -> int:
        """Inputs that every device which computes needs."""
        return self.mask + self.index + self.rotation + self.inputs

    @property
    def peak(self) -> int:
        """The highest of the three peaks where nothing can be reused."""
        return max(self.feed_forward, self.attention, self.logits)


def graph_sizes(
    shape: Hyperparameters,
    layout: MemoryLayout,
    launch: Launch,
    context: ResolvedContext,
    caches: tuple[KvCache, ...],
    prompt_tokens: int | None = None,
) -> GraphSizes:
    """The sizes at reserve time, or at work on a prompt of `prompt_tokens` in each slot."""
    tokens = pad(min(context.n_ctx, context.n_ubatch), context.n_seq_max)
    flash = flash_attention(layout, launch)
    # Without a cache attention sees the ubatch itself.
    cells = [_cells_at_work(cache, context, prompt_tokens) for cache in caches] or [tokens]
    rows = context.n_seq_max * (1 + launch.tokens_ahead)
    outputs = min(tokens, context.n_batch if launch.embeddings else min(context.n_batch, rows))
    hidden = shape.n_embd * tokens * F32
    # Pooling selects each sequence's rows out of separate streams: one more hidden state.
    pooled = hidden if launch.embeddings and context.n_stream > 1 else 0
    if flash:
        attention = shape.head_k_mla and _latent_attention(shape, tokens)
    else:
        attention = _attention_without_flash(shape, launch, tokens, max(cells))
    return GraphSizes(
        tokens=tokens,
        mask=sum(cells) * tokens * (F16 if flash else F32),
        hidden=hidden,
        feed_forward=_feed_forward(shape, tokens),
        attention=attention,
        logits=shape.n_vocab * outputs * F32 + pooled,
        rotation=_rotation(shape, launch, len(caches)),
        index=0 if flash else _value_index(shape, tokens, len(caches)),
        inputs=tokens * (8 + 24 * len(cells)),
    )


def _latent_attention(shape: Hyperparameters, tokens: int) -> int:
    """MLA: queries in their own size, and twice in that of the latent keys."""
    return max(shape.n_head) * tokens * F32 * (shape.head_k_mla + 2 * shape.head_k)


def _cells_at_work(cache: KvCache, context: ResolvedContext, prompt_tokens: int | None) -> int:
    if prompt_tokens is None:
        return cache.cells
    shared = context.n_seq_max if context.n_stream == 1 else 1
    return min(cache.cells, pad(prompt_tokens * shared, 256))


def _feed_forward(shape: Hyperparameters, tokens: int) -> int:
    dense = 3 * max(shape.n_ff) * tokens * F32
    if not shape.n_expert:
        return dense
    width = shape.n_ff_exp or max(shape.n_ff)
    experts = 3 * shape.n_expert_used * width * tokens * F32
    gathered = (2 * shape.n_expert_used + 1) * shape.n_embd * tokens * F32
    return max(experts, gathered)


def _attention_without_flash(shape: Hyperparameters, launch: Launch, tokens: int, cells: int) -> int:
    heads = max(shape.n_head)
    scores = heads * tokens * cells * F32
    queries = heads * max(shape.head_k, shape.head_k_swa) * tokens * F32
    # Rotated queries take the place of the plain ones; results wider than a hidden state find no free place.
    copies = 1 - _is_rotated(launch.cache_type_k, shape.head_k) + (queries > shape.n_embd * tokens * F32)
    return scores + copies * queries


def _value_index(shape: Hyperparameters, tokens: int, caches: int) -> int:
    widest = max(map(shape.n_embd_v_gqa, range(shape.n_layer)))
    return 8 * tokens * widest * caches


def _is_rotated(cache_type: str, head: int) -> bool:
    return type_named(cache_type).is_quantised and head > 0 and head % _ROTATION_MULTIPLE == 0


def _rotation(shape: Hyperparameters, launch: Launch, caches: int) -> int:
    """One matrix per cache for K (the largest power of two times 64 that divides the head) and V (64)."""
    size = 0
    if _is_rotated(launch.cache_type_k, shape.head_k):
        width = _ROTATION_MULTIPLE
        while shape.head_k % (width * 2) == 0:
            width *= 2
        size += width * width * F32
    if _is_rotated(launch.cache_type_v, shape.head_v):
        size += _ROTATION_MULTIPLE**2 * F32
    return size * caches


def plan_compute(
    reserved: GraphSizes, at_work: GraphSizes, placement: Placement, launch: Launch, tolerance: float
) -> list[Allocation]:
    """One compute buffer per device that computes: reserved for the whole context, in memory as far as used."""
    devices = tuple(dict.fromkeys(device for device in placement.layers if device != CPU_DEVICE))
    if not devices:
        return [_compute(CPU_DEVICE, reserved.host_total, at_work.host_total, tolerance, _host_reason(reserved))]
    tolerance = max(tolerance, WIDE_TOLERANCE)
    on_host = CPU_DEVICE in placement.layers[:-1] or bool(placement.overrides)
    pipelined = len(devices) > 1 and not on_host and launch.kv_offload and placement.output != CPU_DEVICE
    allocations = []
    for device in devices:
        size, used = (_device_size(sizes, device, devices, placement, pipelined) for sizes in (reserved, at_work))
        allocations.append(_compute(device, size, used, tolerance, _device_reason(reserved, pipelined)))
    size, used = (sizes.host_total if on_host else _inputs_only(sizes, pipelined) for sizes in (reserved, at_work))
    reason = _host_reason(reserved) if on_host else "attention masks and inputs, which the devices copy"
    allocations.append(_compute(CPU_DEVICE, size, used, tolerance, reason))
    return allocations


def _device_size(
    sizes: GraphSizes, device: str, devices: tuple[str, ...], placement: Placement, pipelined: bool
) -> int:
    last = device == placement.output
    peak = sizes.peak if last else max(sizes.feed_forward, sizes.attention)
    if pipelined:
        states = 16 if device == devices[0] else 11
        return _PIPELINE_COPIES * sizes.shared + states * sizes.hidden + peak
    # A device that gets its layers from the host keeps one hidden state less.
    partial = CPU_DEVICE in placement.layers or len(devices) > 1
    return sizes.shared + (3 if partial else 4) * sizes.hidden + peak


def _inputs_only(sizes: GraphSizes, pipelined: bool) -> int:
    if pipelined:
        return _PIPELINE_COPIES * sizes.shared + 10 * sizes.hidden
    return sizes.shared + 4 * sizes.hidden


def _compute(device: str, size: int, used: int, tolerance: float, reason: str) -> Allocation:
    return Allocation(
        device=device,
        component="compute",
        buffer=f"{device} compute",
        reserved_bytes=size,
        resident_bytes=min(size, used) if kind_of_device(device) == "cpu" else size,
        certainty="estimated",
        low_bytes=int(size * (1 - tolerance)),
        high_bytes=int(size * (1 + tolerance)),
        reason=reason,
    )


def _host_reason(sizes: GraphSizes) -> str:
    return (
        f"{format_mib(sizes.mask)} MiB of attention masks + 5 x {format_mib(sizes.hidden)} of hidden states for "
        f"{sizes.tokens} tokens + the highest of feed-forward {format_mib(sizes.feed_forward)}, attention "
        f"{format_mib(sizes.attention)}, logits {format_mib(sizes.logits)}"
    )


def _device_reason(sizes: GraphSizes, pipelined: bool) -> str:
    copies = f"{_PIPELINE_COPIES} x " if pipelined else ""
    return (
        f"{copies}{format_mib(sizes.mask)} MiB of attention masks, hidden states of {format_mib(sizes.hidden)}, and "
        f"the highest of feed-forward {format_mib(sizes.feed_forward)}, attention {format_mib(sizes.attention)}, "
        f"logits {format_mib(sizes.logits)}"
    )


def plan_output(shape: Hyperparameters, launch: Launch, context: ResolvedContext) -> Allocation:
    """The output buffer: one row of logits per slot, and one embedding where they are served."""
    row = shape.n_vocab * F32 + (shape.n_embd * F32 if launch.embeddings else 0)
    size = context.n_seq_max * row
    return Allocation(
        device=CPU_DEVICE,
        component="output",
        buffer="CPU output",
        reserved_bytes=size,
        resident_bytes=size,
        certainty="exact",
        reason=f"{context.n_seq_max} slots x {row:,} bytes ({shape.n_vocab:,} logits of 4 bytes)",
    )
