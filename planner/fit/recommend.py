"""Which of several launches to use, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.launch import CacheType, Launch
from planner.memory import MemoryPlan, Verdict
from planner.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A launch that could be recommended, with what is known of it."""

    launch: Launch
    plan: MemoryPlan
    resident_bytes: int
    """In memory with every slot used: measured where it was, else predicted."""
    generated_tokens_per_s: float | None = None
    """Of all people together; None where it was not measured."""
    may_start: bool = True
    """One that would leave the machine too little is named as passed over, and never recommended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """One launch and its reason in two sentences."""

    launch: Launch
    reason: str


_ORDER = {Verdict.FITS: 0, Verdict.TIGHT: 1}
_MOST_PRECISE_FIRST: tuple[CacheType, ...] = (
    "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "iq4_nl", "q4_1", "q4_0",
)  # fmt: skip
_NOISE_PERCENT = 10
"""By how much two runs of one launch differ on a machine that has other things to do."""
_LOSSLESS = ("f32", "f16", "bf16")


def recommend(candidates: Sequence[Candidate]) -> Recommendation | None:
    """The best quality that fits well; else the best that fits at all; None when nothing does.

    Quality of a cache type is its precision: f16 loses nothing, q8_0 next to nothing, q4_0 is noticed.
    """
    usable = [candidate for candidate in candidates if candidate.may_start and candidate.plan.verdict in _ORDER]
    if not usable:
        return None
    best = min(usable, key=lambda candidate: (_ORDER[candidate.plan.verdict], _coarseness(candidate)))
    return Recommendation(launch=best.launch, reason=f"{_why(best, candidates)} {_price(best, candidates)}")


def _coarseness(candidate: Candidate) -> int:
    return _MOST_PRECISE_FIRST.index(candidate.launch.cache_type_k)


def _why(best: Candidate, candidates: Sequence[Candidate]) -> str:
    cache_type = best.launch.cache_type_k
    passed_over = [candidate for candidate in candidates if _coarseness(candidate) < _coarseness(best)]
    fits = "fits" if best.plan.verdict is Verdict.FITS else "just fits"
    if not passed_over:
        virtue = "loses nothing" if cache_type in _LOSSLESS else "is the most precise of those tried"
        return f"The {cache_type} cache {virtue} and {fits}: {_lower_first(best.plan.verdict_reason)}"
    return f"{cache_type} is the most precise cache that {fits}, where {_whats_wrong(passed_over)}."


def _whats_wrong(passed_over: Sequence[Candidate]) -> str:
    refused = [c.launch.cache_type_k for c in passed_over if c.plan.verdict is Verdict.REFUSED]
    larger = [c.launch.cache_type_k for c in passed_over if c.plan.verdict is not Verdict.REFUSED]
    said = [f"{' and '.join(larger)} would leave too little memory"] if larger else []
    said += [f"llama.cpp refuses {' and '.join(refused)}"] if refused else []
    return " and ".join(said)


def _price(best: Candidate, candidates: Sequence[Candidate]) -> str:
    others = [candidate for candidate in candidates if candidate.launch != best.launch]
    if not others:
        return f"It holds {format_bytes(best.resident_bytes)} with everyone served."
    smallest = min(others, key=lambda candidate: candidate.resident_bytes)
    saved = best.resident_bytes - smallest.resident_bytes
    name = smallest.launch.cache_type_k
    if saved <= 0:
        return f"No other type measured takes less than its {format_bytes(best.resident_bytes)}."
    speed = _speed_change(best, smallest)
    return f"{name} would save {format_bytes(saved)}{speed}, at the price of less exact answers."


def _speed_change(best: Candidate, other: Candidate) -> str:
    if not best.generated_tokens_per_s or other.generated_tokens_per_s is None:
        return ""
    percent = round(100 * (other.generated_tokens_per_s / best.generated_tokens_per_s - 1))
    if abs(percent) < _NOISE_PERCENT:
        return " at about the same speed"
    return f" and generate {percent} % faster" if percent > 0 else f" but generate {-percent} % slower"


def _lower_first(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
