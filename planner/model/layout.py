"""What a model keeps for its context: caches that hold a row per token, and state that is the same for any
length. Counted in elements here; `planner.memory` turns elements and a launch into bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Span(Enum):
    """How many tokens a cache holds, of those that the context has."""

    CONTEXT = "the whole context"
    WINDOW = "the sliding window"
    COMPRESSED = "one of every few tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """One KV cache as llama.cpp creates it. Rows are in elements, one entry per layer of `layers`."""

    name: str
    """`KV`, `non-SWA KV` and `SWA KV` as in llama.cpp's log, or the name of a further cache."""
    span: Span = Span.CONTEXT
    ratio: int = 1
    """Tokens that share a cell, where the span is COMPRESSED."""
    layers: tuple[int, ...]
    k_elements: tuple[int, ...]
    v_elements: tuple[int, ...]
    """Empty where values are a view of the keys (MLA), so that nothing is stored."""
    always_divided: bool = False
    """Whether every slot has its own even in a unified cache."""
    v_full_width: bool = True
    """Whether its V takes the widest row of the model when it is transposed (no flash attention)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayout:
    """State that every slot keeps, whatever its context: F32 elements of one sequence, over all layers."""

    name: str
    layers: tuple[int, ...]
    elements: int
    rolls_back: bool = False
    """Whether it is kept once more for every token that is guessed ahead, so that wrong guesses can be undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLayout:
    """Everything that a model keeps for its context."""

    caches: tuple[CacheLayout, ...] = ()
    states: tuple[StateLayout, ...] = ()
    n_swa: int = 0
    """Tokens a sliding-window layer can see; 0 without a window."""
    one_cache_type: bool = False
    """Whether llama.cpp insists on the same type for K and V (MLA, DeepSeek-V4)."""
    flash_attention: bool = True
    """Whether flash attention can be on."""
    widest_v: int = 0
    """Elements of the widest V row of all layers: what each takes when V is transposed (no flash attention)."""
    ahead: tuple[CacheLayout, ...] = ()
    """Caches of a second context, for the blocks that predict further tokens (MTP); empty without such blocks."""
