"""An architecture that is not in our table, planned from its own tensors as far as they tell.

llama.cpp may well know it, so that it is never called refused: what the file does not say is missing.
"""

from __future__ import annotations

import re

from planner.errors import ModelError
from planner.hardware import Hardware
from planner.launch import Launch, ResolvedContext, resolve_context
from planner.memory.placement import Placement, place
from planner.memory.plan import Allocation, MemoryPlan
from planner.memory.weights import plan_weights
from planner.model.ggml_types import type_named
from planner.model.gguf import TensorInfo
from planner.model.hyperparameters import MAX_LAYERS, Keys
from planner.model.model import Model

LEAST_SHARE = 0.1
"""Windows, shared caches and latent attention keep at least about this much of a plain cache."""
_BLOCK = re.compile(r"blk\.(\d{1,3})\.")


def guess_plan(model: Model, launch: Launch, hardware: Hardware) -> MemoryPlan:
    """Exact weights, and a KV cache as a range from the shapes of `attn_k` and `attn_v`; the rest is missing."""
    placement = place(_layers(model), launch, hardware)
    n_ctx_train = _known(model, "context_length")
    context = resolve_context(launch, n_ctx_train) if launch.ctx_size or n_ctx_train else None
    kv = _guess_kv(model, launch, context, placement) if context else []
    return MemoryPlan(
        launch=launch,
        hardware=hardware,
        context=context,
        n_ctx_slot=min(context.n_ctx_seq, n_ctx_train or context.n_ctx_seq) if context else 0,
        allocations=(*plan_weights(model, launch, hardware, placement), *kv),
        missing=(
            f"The architecture {model.architecture!r} is not known to this version: its weights are exact, "
            f"{_about_kv(model, context, kv)}, its compute buffers are not known. "
            "llama.cpp may know it: planner plan MODEL --dry-run asks."
        ),
    )


def _known(model: Model, key: str) -> int:
    """The number behind a key; 0 where the file has none."""
    try:
        return Keys(model.metadata, model.architecture).integer(key, 0)
    except ModelError:
        return 0


def _layers(model: Model) -> int:
    """What the metadata say, else as many as the tensors are numbered."""
    announced = _known(model, "block_count")
    if 1 <= announced <= MAX_LAYERS:
        return announced
    numbers = (int(block[1]) for tensor in model.tensors if (block := _BLOCK.match(tensor.name)))
    return min(MAX_LAYERS, max(numbers, default=-1) + 1)


def _about_kv(model: Model, context: ResolvedContext | None, kv: list[Allocation]) -> str:
    if context is None:
        return f"its context is not named ({model.architecture}.context_length; --ctx-size says one), nor its KV cache"
    if not kv:
        return "its KV cache is not told by its tensors"
    return "its KV cache is a range from the shapes of its tensors"


def _guess_kv(model: Model, launch: Launch, context: ResolvedContext, placement: Placement) -> list[Allocation]:
    """One range per device, of the layers that have an `attn_k`."""
    rows: dict[str, list[int]] = {}
    for layer, device in enumerate(placement.cache_layers):
        key = model.tensor(f"blk.{layer}.attn_k.weight")
        if key is None or len(key.shape) < 2:
            continue
        value = model.tensor(f"blk.{layer}.attn_v.weight")
        value = value if value and len(value.shape) > 1 else key
        row = _row_bytes(key, launch.cache_type_k) + _row_bytes(value, launch.cache_type_v)
        rows.setdefault(device, []).append(row)
    tokens = context.n_ctx_seq * context.n_stream
    return [_guess(device, sum(found), len(found), tokens) for device, found in rows.items()]


def _row_bytes(tensor: TensorInfo, cache_type: str) -> int:
    """Bytes that one token's outputs of this matrix take in a cache."""
    ggml_type = type_named(cache_type)
    return tensor.shape[1] * ggml_type.block_bytes // ggml_type.block_elements


def _guess(device: str, row: int, layers: int, tokens: int) -> Allocation:
    size = row * tokens
    return Allocation(
        device=device,
        component="kv",
        buffer="KV",
        reserved_bytes=size,
        resident_bytes=size,
        certainty="estimated",
        low_bytes=int(size * LEAST_SHARE),
        high_bytes=size,
        reason=f"{tokens:,} cells x {row:,} bytes from the attn_k and attn_v tensors of {layers} layers, at most",
    )
