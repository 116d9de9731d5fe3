"""`Gpu`: one graphics processor as the operating system and its maker's library tell of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Vendor = Literal["nvidia", "amd", "intel", "apple", "other"]

Confidence = Literal["read", "estimated", "low"]
"""`read`: stated by the driver. `estimated`: by a rule. `low`: read, and known to promise too much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A program that holds memory of a graphics processor."""

    name: str | None
    """Its name; None where it cannot be known (another user's, or outside of this container)."""
    size_bytes: int | None
    """What it holds; None where the driver does not say (WDDM, WSL2)."""
    is_desktop: bool = False
    """Whether it draws a person's screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One graphics processor, or one slice of it. None is unknown."""

    vendor: Vendor
    name: str
    """As its maker names it, where that can be known."""
    pci: str | None = None
    """Where it sits, as `0000:01:00.0`."""
    shares_memory: bool = False
    """Whether it has no memory of its own: what it uses is the machine's."""
    total_bytes: int | None = None
    """Memory of its own; of one that shares, what firmware set aside for it (the carve-out), else None."""
    free_bytes: int | None = None
    """The part of `total_bytes` that can be had now."""
    shared_total_bytes: int | None = None
    """Of one that shares: what the driver lets it take of the machine's memory (GTT, Metal's working set)."""
    shared_free_bytes: int | None = None
    """The part of `shared_total_bytes` that is not in use."""
    max_allocation_bytes: int | None = None
    """The largest single buffer; None where nothing is known to limit it."""
    driver: str | None = None
    """Its driver with the version, as `NVIDIA 580.95.05`: another one takes another amount of memory for itself."""
    slice: str | None = None
    """The profile of a MIG slice, as `1g.10gb`; None for a whole processor."""
    confidence: Confidence = "read"
    holders: tuple[Holder, ...] = ()
    """Who holds its memory, most first."""
    sources: tuple[str, ...] = ()
    """Where each figure came from, one line each."""
    warnings: tuple[str, ...] = ()
    """What could not be read or believed of it, one line each."""


def merged_holders(holders: list[Holder]) -> tuple[Holder, ...]:
    """One entry for each name, most first; unknown sizes add nothing to known ones."""
    sums: dict[str | None, Holder] = {}
    for holder in holders:
        known = sums.get(holder.name)
        if known is None:
            sums[holder.name] = holder
        elif holder.size_bytes is not None:
            size = holder.size_bytes + (known.size_bytes or 0)
            sums[holder.name] = Holder(name=holder.name, size_bytes=size, is_desktop=holder.is_desktop)
    return tuple(sorted(sums.values(), key=lambda holder: -(holder.size_bytes or 0)))
