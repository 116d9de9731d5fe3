"""What llama-server holds beside llama.cpp's buffers: itself, and what grows while people talk to it.

Source: `tools/server/server-context.cpp` (prompt cache, checkpoints), `src/llama-context.cpp`
(`llama_state_seq_get_size_ext`), and measurements (overhead).
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.hardware import CPU_DEVICE, DeviceKind, kind_of_device
from planner.launch import Launch, ResolvedContext
from planner.memory.kv import F32, KvCache
from planner.memory.learned import Learned, LearnedSize
from planner.memory.placement import Placement
from planner.memory.plan import Allocation
from planner.memory.program import LLAMA_SERVER, Program
from planner.model.hyperparameters import Hyperparameters
from planner.model.layout import MemoryLayout
from planner.units import MIB, format_bytes, format_mib

CHECKPOINT_MARGIN_TOKENS = 4
"""A checkpoint is taken this many tokens before the end of a prompt, and another one ubatch earlier."""
SAMPLER_BYTES_PER_TOKEN = 12
"""llama_token_data: what each slot's sampler holds for every token of the vocabulary."""

DRIVER_BYTES: Mapping[DeviceKind, tuple[int, int, int]] = {
    "cuda": (200 * MIB, 400 * MIB, 800 * MIB),
    "rocm": (200 * MIB, 300 * MIB, 600 * MIB),
    "vulkan": (20 * MIB, 100 * MIB, 400 * MIB),
    "sycl": (50 * MIB, 200 * MIB, 500 * MIB),
    "metal": (0, 50 * MIB, 300 * MIB),
    "other": (0, 200 * MIB, 800 * MIB),
}
"""Least, likely and most that a driver takes on a device for itself, its kernels and workspaces. Ranges from
public reports; not verified on hardware, and replaced by the first measurement of a card."""


def plan_drivers(placement: Placement, learned: Learned) -> list[Allocation]:
    """What the driver takes on each accelerator beside llama.cpp's buffers."""
    allocations = []
    for device in dict.fromkeys(device for device in placement.layers if device != CPU_DEVICE):
        least, likely, most = DRIVER_BYTES.get(kind_of_device(device), (0, 0, 0))
        if (known := learned.drivers.get(device)) is not None:
            allocations.append(
                Allocation(
                    device=device,
                    component="overhead",
                    buffer="driver",
                    reserved_bytes=known.size_bytes,
                    resident_bytes=known.size_bytes,
                    certainty="learned",
                    reason=f"what was taken on {device} beside llama.cpp's buffers{_in_run(known)}",
                )
            )
        elif most:
            allocations.append(
                Allocation(
                    device=device,
                    component="overhead",
                    buffer="driver",
                    reserved_bytes=likely,
                    resident_bytes=likely,
                    certainty="estimated",
                    low_bytes=least,
                    high_bytes=most,
                    reason="context, kernels and workspaces of the driver, until they are measured here",
                )
            )
    return allocations


def _in_run(learned: LearnedSize) -> str:
    return f" in run {learned.run}" if learned.run else ""


def plan_overhead(
    shape: Hyperparameters,
    context: ResolvedContext,
    learned: LearnedSize | None = None,
    program: Program = LLAMA_SERVER,
) -> list[Allocation]:
    """The process itself, learned or estimated, and its samplers where it has any."""
    estimate = program.overhead_base_bytes + program.overhead_bytes_per_token * shape.n_vocab
    size = estimate if learned is None else learned.size_bytes
    samplers = context.n_seq_max * shape.n_vocab * SAMPLER_BYTES_PER_TOKEN * program.has_samplers
    allocations = [
        Allocation(
            device=CPU_DEVICE,
            component="overhead",
            buffer="process",
            reserved_bytes=size,
            resident_bytes=size,
            certainty="estimated" if learned is None else "learned",
            low_bytes=size // 2 if learned is None else None,
            high_bytes=size * 2 if learned is None else None,
            reason=(
                f"program, libraries and a vocabulary of {shape.n_vocab:,} tokens, until it is measured here"
                if learned is None
                else f"what this model and engine held beside their buffers{_in_run(learned) or ' earlier'}"
            ),
        ),
        Allocation(
            device=CPU_DEVICE,
            component="overhead",
            buffer="samplers",
            reserved_bytes=samplers,
            resident_bytes=samplers,
            certainty="estimated",
            low_bytes=0,
            high_bytes=2 * samplers,
            reason=f"{context.n_seq_max} slots x {shape.n_vocab:,} tokens x {SAMPLER_BYTES_PER_TOKEN} bytes",
        ),
    ]
    return allocations if samplers else allocations[:1]


def checkpoint_bytes(caches: tuple[KvCache, ...], layout: MemoryLayout, context: ResolvedContext, tokens: int) -> int:
    """Bytes of one checkpoint of a slot that holds `tokens`: the window's cells of windowed caches, and the state.

    What a snapshot can do without is not in it: caches of the whole context roll back by themselves.
    """
    size = 8
    for cache in caches:
        if cache.windowed:
            cells = min(tokens, layout.n_swa)
            parts = 2 if cache.layout.v_elements else 1
            size += 4 * context.n_stream + 4 + cells * 12 + 16 + parts * len(cache.layout.layers) * 12
            size += cells * (cache.k_row_bytes + cache.v_row_bytes)
    for state in layout.states:
        size += 4 + 8 + 8 + 2 * 12 * len(state.layers) + state.elements * F32
    return size


def plan_growth(
    layout: MemoryLayout,
    launch: Launch,
    context: ResolvedContext,
    caches: tuple[KvCache, ...],
    prompt_tokens: int | None,
) -> list[Allocation]:
    """Checkpoints of slots that cannot be rolled back (windows, states), and the prompt cache of finished
    conversations.
    """
    allocations = []
    windowed = any(cache.windowed for cache in caches) and not launch.swa_full
    if launch.ctx_checkpoints and (windowed or layout.states):
        allocations.append(_checkpoints(layout, launch, context, caches, prompt_tokens))
    if launch.cache_ram:
        allocations.append(_prompt_cache(launch))
    return allocations


def _checkpoints(
    layout: MemoryLayout,
    launch: Launch,
    context: ResolvedContext,
    caches: tuple[KvCache, ...],
    prompt_tokens: int | None,
) -> Allocation:
    largest = checkpoint_bytes(caches, layout, context, context.n_ctx_seq)
    after_first = 0
    if prompt_tokens is not None:
        last = prompt_tokens - CHECKPOINT_MARGIN_TOKENS
        ends = [end for end in (last - context.n_ubatch, last) if end > 0][-launch.ctx_checkpoints :]
        after_first = context.n_seq_max * sum(checkpoint_bytes(caches, layout, context, end) for end in ends)
    limit = context.n_seq_max * launch.ctx_checkpoints * largest
    kept = f"the {layout.n_swa} tokens of the window" if layout.n_swa else "the recurrent state"
    return Allocation(
        device=CPU_DEVICE,
        component="checkpoints",
        buffer="checkpoints",
        reserved_bytes=0,
        resident_bytes=after_first,
        growth_bytes=max(0, limit - after_first),
        # Sizes of windows were held against a running server, those of states were only read in its source.
        certainty="estimated" if layout.states else "exact",
        reason=f"up to {launch.ctx_checkpoints} per slot of {format_mib(largest)} MiB: {kept} (--ctx-checkpoints)",
    )


def _prompt_cache(launch: Launch) -> Allocation:
    unlimited = launch.cache_ram < 0
    limit = 0 if unlimited else launch.cache_ram * MIB
    return Allocation(
        device=CPU_DEVICE,
        component="prompt_cache",
        buffer="prompt cache",
        reserved_bytes=0,
        resident_bytes=0,
        growth_bytes=limit,
        certainty="exact",
        reason=(
            "grows without limit (--cache-ram -1)"
            if unlimited
            else f"finished conversations are kept up to {format_bytes(limit)} (--cache-ram {launch.cache_ram})"
        ),
    )
