"""Compute and output buffers on the CPU, in closed form.

llama.cpp lays its graph out with a best-fit allocator (`ggml/src/ggml-alloc.c`), so the buffer is the
largest sum of tensors alive at once. For a transformer that is one of a few moments: inside attention,
inside the feed-forward, or at the logits. `tests/data/server_compute.csv` holds what a llama-server
reserved; the forms below meet it within 1 %, and ranges are given as 3 %.

Source: `src/llama-context.cpp` (`sched_reserve`, `graph_reserve`, `output_reserve`), `src/llama-graph.cpp`.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.hardware import CPU_DEVICE
from planner.launch import Launch, ResolvedContext
from planner.memory.kv import KvCache
from planner.memory.plan import Allocation
from planner.model.ggml_types import type_named
from planner.model.hyperparameters import Hyperparameters
from planner.units import format_mib, pad

F32 = 4
F16 = 2
TOLERANCE = 0.03
"""How far the formula may be off, as a fraction; what the range of the estimate says."""

_ROTATION_MULTIPLE = 64
"""Heads of whole multiples of this many elements are rotated (Hadamard) before they are quantised."""


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
    def total(self) -> int:
        """The buffer: inputs and hidden states, and the highest of the three peaks."""
        base = self.mask + self.index + self.rotation + 5 * self.hidden + self.inputs
        # The masks, the rotation and three hidden states beside them are free when the logits are computed:
        # logits that fit into their place cost nothing.
        logits = self.logits if self.logits > self.mask + self.rotation + 3 * self.hidden else 0
        return base + max(self.feed_forward, self.attention, logits)


def graph_sizes(
    shape: Hyperparameters,
    launch: Launch,
    context: ResolvedContext,
    caches: tuple[KvCache, ...],
    prompt_tokens: int | None = None,
) -> GraphSizes:
    """The sizes at reserve time, or at work on a prompt of `prompt_tokens` in each slot."""
    tokens = pad(min(context.n_ctx, context.n_ubatch), context.n_seq_max)
    flash = launch.flash_attn != "off"
    cells = [_cells_at_work(cache, context, prompt_tokens) for cache in caches]
    outputs = min(tokens, context.n_batch if launch.embeddings else min(context.n_batch, context.n_seq_max))
    hidden = shape.n_embd * tokens * F32
    # Pooling selects each sequence's rows out of separate streams: one more hidden state.
    pooled = hidden if launch.embeddings and context.n_stream > 1 else 0
    return GraphSizes(
        tokens=tokens,
        mask=sum(cells) * tokens * (F16 if flash else F32),
        hidden=hidden,
        feed_forward=_feed_forward(shape, tokens),
        attention=0 if flash else _attention_without_flash(shape, launch, tokens, max(cells)),
        logits=shape.n_vocab * outputs * F32 + pooled,
        rotation=_rotation(shape, launch, len(caches)),
        index=0 if flash else _value_index(shape, tokens, len(caches)),
        inputs=tokens * (8 + 24 * len(caches)),
    )


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
    widest = max(shape.n_embd_v_gqa(layer) for layer in range(shape.n_layer))
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


def plan_compute(reserved: GraphSizes, at_work: GraphSizes) -> Allocation:
    """The compute buffer: reserved for the whole context, in memory only as far as it is used."""
    size = reserved.total
    return Allocation(
        device=CPU_DEVICE,
        component="compute",
        buffer="CPU compute",
        reserved_bytes=size,
        resident_bytes=min(size, at_work.total),
        certainty="estimated",
        low_bytes=int(size * (1 - TOLERANCE)),
        high_bytes=int(size * (1 + TOLERANCE)),
        reason=(
            f"{format_mib(reserved.mask)} MiB of attention masks + 5 x {format_mib(reserved.hidden)} of hidden "
            f"states for {reserved.tokens} tokens + the highest of feed-forward "
            f"{format_mib(reserved.feed_forward)}, attention {format_mib(reserved.attention)}, "
            f"logits {format_mib(reserved.logits)}"
        ),
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
