"""What conversations leave in memory: predicted from llama.cpp's own layout of a saved state, and held against a soak.

Source: `src/llama-context.cpp` (`llama_state_seq_get_size_ext`), `tools/server/server-context.cpp` (prompt cache:
the whole state of a conversation and its checkpoints, the oldest given up where the next has no room).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.launch import Launch, ResolvedContext
from planner.measure.measurement import Measurement
from planner.measure.soak import script_for
from planner.measure.users import Workload
from planner.memory import MemoryPlan
from planner.memory.kv import kv_caches
from planner.memory.server import CHECKPOINT_MARGIN_TOKENS, checkpoint_bytes
from planner.model import Model


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
    """One conversation of the soak in the prompt cache, as predicted."""
    predicted_kept_bytes: int
    """All conversations that were kept, as predicted."""
    kept_bytes: int
    """What llama.cpp says of them."""
    predicted_bytes: int
    """By how much the server's own memory should have grown in the soak."""
    grown_bytes: int | None
    """By how much it grew; None where the system does not tell."""
    limit_bytes: int | None
    """What the prediction lets grow, prompt cache and checkpoints; None without limit."""


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


def hold_growth(plan: MemoryPlan, model: Model, measurement: Measurement) -> Growth | None:
    """Hold what a soak left against the prediction; None where there was none, or the model is not understood."""
    soak, context = measurement.soak, plan.context
    if soak is None or context is None or model.rules is None:
        return None
    launch = measurement.launch
    workload = Workload(measurement.everyone.prompt_tokens, measurement.everyone.generated_tokens)
    script = script_for(workload, context)
    measured_tokens = workload.prompt_tokens + workload.generated_tokens - 1

    def taken(tokens: int) -> Conversation:
        # What the measurement itself left is kept, too; so is a conversation that another one broke in on.
        own = tokens == measured_tokens != script.tokens
        ends = [workload.prompt_tokens] if own else [end for end in script.prompt_ends if end <= tokens]
        return conversation(model, launch, context, ends, tokens)

    last, first = taken(script.tokens), taken(measured_tokens)
    kept = sum(taken(entry.tokens).kept_bytes for entry in soak.kept)
    slots = sum(taken(tokens or measured_tokens).checkpoints_bytes - first.checkpoints_bytes for tokens in soak.held)
    return Growth(
        entry_bytes=last.kept_bytes,
        predicted_kept_bytes=kept,
        kept_bytes=soak.kept_bytes,
        predicted_bytes=kept - soak.kept_before_bytes + slots,
        grown_bytes=soak.grown_bytes,
        limit_bytes=None if launch.cache_ram < 0 else plan.growth_bytes(),
    )
