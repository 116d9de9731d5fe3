"""What conversations leave in memory: predicted from llama.cpp's own layout of a saved state, and held against a soak.

Source: `src/llama-context.cpp` (`llama_state_seq_get_size_ext`), `tools/server/server-context.cpp` (prompt cache:
the whole state of a conversation and its checkpoints, the oldest given up where the next has no room).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.launch import Launch, ResolvedContext
from planner.measure.measurement import Soak
from planner.memory.kv import kv_caches
from planner.memory.server import CHECKPOINT_MARGIN_TOKENS, checkpoint_bytes
from planner.model import Model
from planner.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What one conversation takes beside its cache, in bytes."""

    state_bytes: int
    """A copy of all that its slot holds."""
    checkpoints_bytes: int

    @property
    def kept_bytes(self) -> int:
        """Its entry in the prompt cache: the checkpoints are copied with it."""
        return self.state_bytes + self.checkpoints_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A soak held against the prediction."""

    entry_bytes: int
    """One conversation in the prompt cache, as predicted."""
    predicted_kept_bytes: int
    """So many conversations as were kept."""
    kept_bytes: int
    """What llama.cpp says of them."""
    predicted_bytes: int
    """By how much the server's own memory should have grown in the soak."""
    grown_bytes: int | None
    """By how much it grew; None where the system does not tell."""
    limit_bytes: int | None
    """What --cache-ram lets the prompt cache grow to; None without limit."""

    @property
    def within_limit(self) -> bool:
        """Whether the prompt cache stayed below what it may take."""
        return self.limit_bytes is None or self.kept_bytes <= self.limit_bytes


def conversation(
    model: Model, launch: Launch, context: ResolvedContext, prompt_ends: Sequence[int], tokens: int
) -> Conversation:
    """What a conversation of so many `tokens` takes whose prompts ended after `prompt_ends` tokens."""
    layout = model.layout
    caches = kv_caches(layout, launch, context)
    whole = tuple(cache for cache in caches if not cache.windowed or launch.swa_full)
    state = checkpoint_bytes(tuple(cache for cache in caches if cache not in whole), layout, context, tokens)
    for cache in whole:
        parts = 2 if cache.layout.v_elements else 1
        state += 4 * context.n_stream + 4 + tokens * 12 + 16 + parts * len(cache.layout.layers) * 12
        state += tokens * (cache.k_row_bytes + cache.v_row_bytes)
    made = _checkpoint_ends(prompt_ends, context.n_ubatch)[-launch.ctx_checkpoints :] if launch.ctx_checkpoints else []
    if not layout.states and len(whole) == len(caches):
        made = []  # it rolls back by itself
    return Conversation(
        state_bytes=state,
        checkpoints_bytes=sum(checkpoint_bytes(caches, layout, context, end) for end in made),
    )


def _checkpoint_ends(prompt_ends: Sequence[int], n_ubatch: int) -> list[int]:
    """Where checkpoints are made: shortly before the end of each prompt, and one ubatch earlier."""
    ends = []
    known = 0
    for prompt_end in prompt_ends:
        last = prompt_end - CHECKPOINT_MARGIN_TOKENS
        ends += [end for end in (last - n_ubatch, last) if end > known]
        known = prompt_end
    return ends


def hold_growth(model: Model, launch: Launch, context: ResolvedContext, soak: Soak, prompt_ends: Sequence[int],
                first_prompt_tokens: int) -> Growth:  # fmt: skip
    """Hold what a soak left against the prediction.

    Each slot had answered one prompt of `first_prompt_tokens` before, whose checkpoints it held.
    """
    last = conversation(model, launch, context, prompt_ends, soak.tokens)
    first = conversation(model, launch, context, [first_prompt_tokens], first_prompt_tokens)
    kept = soak.kept_prompts * last.kept_bytes
    return Growth(
        entry_bytes=last.kept_bytes,
        predicted_kept_bytes=kept,
        kept_bytes=soak.kept_bytes,
        predicted_bytes=kept
        - soak.kept_before_bytes
        + context.n_seq_max * (last.checkpoints_bytes - first.checkpoints_bytes),
        grown_bytes=soak.grown_bytes,
        limit_bytes=None if launch.cache_ram < 0 else launch.cache_ram * MIB,
    )
