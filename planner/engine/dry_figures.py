"""`DryRun`: what llama.cpp says that it would reserve, with the precision that it says it in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from planner.memory.plan import Component

Way = Literal["llama-server", "llama-cpp-python"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DryFigure:
    """One figure of llama.cpp's: bytes of some components on one device."""

    device: str
    components: tuple[Component, ...]
    """What it is for; several where llama.cpp gives one sum for them."""
    size_bytes: int
    """As printed."""
    low_bytes: int
    """The least and the most that may be printed so."""
    high_bytes: int

    def holds(self, size_bytes: int) -> bool:
        """Whether this many bytes would be printed as this figure."""
        return self.low_bytes <= size_bytes <= self.high_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """llama.cpp's own accounting of one launch, of which nothing was allocated."""

    way: Way
    build: str
    """Whose answer it is: the commit of a llama-server, or the version of the library."""
    figures: tuple[DryFigure, ...] = ()
    projector_bytes: int | None = None
    """Weights and compute buffer of the projector (`--mmproj`), to 0.01 MiB; None where llama.cpp did not say."""
    refusal: str = ""
    """llama.cpp's own words where it would not start this launch; empty where it would."""

    def figure(self, component: Component, device: str) -> DryFigure | None:
        """The figure that this component is part of; None where llama.cpp gave none."""
        return next((f for f in self.figures if f.device == device and component in f.components), None)


def summed(figures: Iterable[DryFigure]) -> tuple[DryFigure, ...]:
    """One figure for each device and kind: llama.cpp prints one for every buffer."""
    sums: dict[tuple[str, tuple[Component, ...]], DryFigure] = {}
    for figure in figures:
        key = (figure.device, figure.components)
        so_far = sums.get(key)
        sums[key] = figure if so_far is None else _add(so_far, figure)
    return tuple(sums.values())


def _add(one: DryFigure, other: DryFigure) -> DryFigure:
    return DryFigure(
        device=one.device,
        components=one.components,
        size_bytes=one.size_bytes + other.size_bytes,
        low_bytes=one.low_bytes + other.low_bytes,
        high_bytes=one.high_bytes + other.high_bytes,
    )
