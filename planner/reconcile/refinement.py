"""A whole grid in llama.cpp's own figures from a few dry runs: which launch to ask about next, and what lies between.

What llama.cpp reserves is piecewise linear in the context, and the formula knows most of its bends. So not the
figures but their differences from the prediction are followed along a line of launches: where the two ends and the
middle of a line agree on one straight course of the difference, what lies between has it too. Where they do not, each
half is a line of its own, down to asking about every launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.engine.dry_figures import DryFigure, DryRun
from planner.memory import Component, MemoryPlan

_ALIGNMENT_BYTES = 64 << 10
"""By how much a figure may leave its straight line: every tensor of a graph is padded for itself. Seen: 52 KiB."""

_Key = tuple[str, tuple[Component, ...]]
"""What tells the figures of one dry run apart: device and components."""


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A launch's place among those that differ in people and context alone."""

    users: int
    ctx_per_user: int
    """Tokens."""


@dataclass(frozen=True, slots=True)
class Refined:
    """What a few answers say of all points."""

    between: Mapping[Point, DryRun]
    """Dry runs that need not be made, since those around them tell them."""
    question: Point | None
    """What to ask next; None when nothing is left to ask."""


def refine(plans: Mapping[Point, MemoryPlan], answers: Mapping[Point, DryRun]) -> Refined:
    """Follow the lines as far as the answers go: along the context for the fewest, the most and a middle number of
    people, then across for each context.
    """
    known = dict(answers)
    questions = (_follow(line, plans, known) for line in _lines(plans))
    question = next((question for question in questions if question is not None), None)
    return Refined({point: told for point, told in known.items() if point not in answers}, question)


def _lines(points: Iterable[Point]) -> Iterator[list[Point]]:
    ordered = sorted(points)
    users = sorted({point.users for point in ordered})
    for count in dict.fromkeys((users[0], users[-1], users[(len(users) - 1) // 2])):
        yield [point for point in ordered if point.users == count]
    for context in sorted({point.ctx_per_user for point in ordered}):
        yield [point for point in ordered if point.ctx_per_user == context]


def _follow(line: Sequence[Point], plans: Mapping[Point, MemoryPlan], known: dict[Point, DryRun]) -> Point | None:
    """Fill in what lies between the ends of a line; the first point that must be asked where one must."""
    low, middle, high = line[0], line[(len(line) - 1) // 2], line[-1]
    for point in (low, high, middle):
        if point not in known:
            return point
    halves = (line[: line.index(middle) + 1], line[line.index(middle) :])
    if _is_straight(low, middle, high, plans, known):
        for half in halves:
            for point in half[1:-1]:
                known.setdefault(point, _between(half[0], point, half[-1], plans, known))
        return None
    questions = (_follow(half, plans, known) for half in halves if len(half) > 2)
    return next((question for question in questions if question is not None), None)


def _is_straight(
    low: Point, middle: Point, high: Point, plans: Mapping[Point, MemoryPlan], known: Mapping[Point, DryRun]
) -> bool:
    """Whether the middle's differences can lie on the straight lines between those of the ends."""
    if any(known[point].refusal or plans[point].refusal for point in (low, middle, high)):
        return False
    at_low, at_middle, at_high = (_differences(plans[point], known[point]) for point in (low, middle, high))
    if not at_low.keys() == at_middle.keys() == at_high.keys():
        return False
    share = _share(low, middle, high)
    return all(_mixed(at_low[key], at_high[key], share).meets(span) for key, span in at_middle.items())


@dataclass(frozen=True, slots=True)
class _Span:
    """From the least to the most that a difference from the prediction may be, in bytes."""

    low: float
    high: float

    def meets(self, other: _Span) -> bool:
        return self.low <= other.high and other.low <= self.high


def _differences(plan: MemoryPlan, told: DryRun) -> dict[_Key, _Span]:
    differences = {}
    for figure in told.figures:
        predicted = _predicted(plan, figure)
        differences[figure.device, figure.components] = _Span(
            figure.low_bytes - predicted, figure.high_bytes - predicted
        )
    return differences


def _predicted(plan: MemoryPlan, figure: DryFigure) -> int:
    return sum(plan.bytes(component=component, device=figure.device) for component in figure.components)


def _share(low: Point, point: Point, high: Point) -> float:
    """How far along the line from low to high a point lies: 0 to 1."""
    if high.users != low.users:
        return (point.users - low.users) / (high.users - low.users)
    return (point.ctx_per_user - low.ctx_per_user) / max(1, high.ctx_per_user - low.ctx_per_user)


def _mixed(low: _Span, high: _Span, share: float) -> _Span:
    return _Span(low.low + (high.low - low.low) * share, low.high + (high.high - low.high) * share)


def _between(
    low: Point, point: Point, high: Point, plans: Mapping[Point, MemoryPlan], known: Mapping[Point, DryRun]
) -> DryRun:
    """The dry run of a point on a straight line; the prediction itself where it agrees with both sides."""
    at_low, at_high = (_differences(plans[end], known[end]) for end in (low, high))
    share = _share(low, point, high)
    figures = []
    for figure in known[low].figures:
        key = (figure.device, figure.components)
        predicted = _predicted(plans[point], figure)
        span = _mixed(at_low[key], at_high[key], share)
        agrees = at_low[key].low <= 0 <= at_low[key].high and at_high[key].low <= 0 <= at_high[key].high
        middle = 0.0 if agrees else (span.low + span.high) / 2
        figures.append(
            replace(
                figure,
                size_bytes=max(0, round(predicted + middle)),
                low_bytes=max(0, round(predicted + span.low) - _ALIGNMENT_BYTES),
                high_bytes=max(0, round(predicted + span.high) + _ALIGNMENT_BYTES),
            )
        )
    return replace(known[low], figures=tuple(figures))
