"""`MemoryPlan`: what a launch will hold, byte by byte, and whether that fits.

A plan is a list of allocations. Every total and verdict is derived from them, never stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from planner.hardware import CPU_DEVICE, Hardware, Pool
from planner.launch import Launch, ResolvedContext
from planner.units import format_bytes

Component = Literal[
    "weights", "kv", "state", "compute", "output", "projector", "draft", "overhead", "prompt_cache", "checkpoints"
]
"""What bytes are for; the words of the user interface, in its order."""

Certainty = Literal["exact", "estimated", "learned", "dry run"]
"""`dry run`: llama.cpp itself says so, of this machine and its build."""


class Verdict(StrEnum):
    """Whether a launch fits a machine."""

    FITS = "fits"
    TIGHT = "tight"
    TOO_BIG = "too_big"
    REFUSED = "refused"
    UNKNOWN = "unknown"

    @property
    def sign(self) -> str:
        """One character, where there is no room for a word."""
        return _SIGNS[self]


_SIGNS = {
    Verdict.FITS: "✓",
    Verdict.TIGHT: "~",
    Verdict.TOO_BIG: "✗",
    Verdict.REFUSED: "–",
    Verdict.UNKNOWN: "?",
}

_NOT_ONE_BUFFER: tuple[Component, ...] = ("weights", "overhead")
"""Weights are split over several buffers, and what a driver takes is none of llama.cpp's."""

_WORST_FIRST = (Verdict.REFUSED, Verdict.TOO_BIG, Verdict.UNKNOWN, Verdict.TIGHT, Verdict.FITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Bytes that one component takes on one device."""

    device: str
    component: Component
    buffer: str
    """llama.cpp's own name for it in the log (`CPU_Mapped model`, `CPU KV`), or ours where it logs none."""
    reserved_bytes: int
    """What llama.cpp allocates at start."""
    resident_bytes: int
    """What of it is really in memory once every slot has worked."""
    growth_bytes: int = 0
    """What it may take in addition over the following days."""
    certainty: Certainty
    low_bytes: int | None = None
    """Lowest likely value of `reserved_bytes`, where it is estimated."""
    high_bytes: int | None = None
    reason: str
    """The formula with its values, for a person to check by hand."""
    on_demand: bool = False
    """Whether it is mapped and read row by row, so that it needs no memory of its own."""

    @property
    def needed_bytes(self) -> int:
        """What must be free for it at the start."""
        return self.resident_bytes if self.on_demand else self.reserved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """The allocations of one device and its verdict."""

    name: str
    pool: Pool
    allocations: tuple[Allocation, ...]
    max_allocation_bytes: int | None
    cap_bytes: int | None
    pool_verdict: Verdict
    """Whether all that lies in its pool fits there."""

    @property
    def is_cpu(self) -> bool:
        """Whether it is the processor itself."""
        return self.name == CPU_DEVICE

    @property
    def oversized(self) -> Allocation | None:
        """A single buffer of llama.cpp's that is larger than the device can allocate."""
        if self.max_allocation_bytes is None:
            return None
        single = [a for a in self.allocations if a.component not in _NOT_ONE_BUFFER]
        return next((a for a in single if a.reserved_bytes > self.max_allocation_bytes), None)

    @property
    def verdict(self) -> Verdict:
        """Whether it fits: as the pool, unless the device itself can hold or allocate less."""
        return Verdict.TOO_BIG if self.oversized or self.over_cap_bytes > 0 else self.pool_verdict

    @property
    def over_cap_bytes(self) -> int:
        """What it holds beyond what it may take of its pool; 0 where it stays below."""
        return 0 if self.cap_bytes is None else max(0, self.total_bytes - self.cap_bytes)

    @property
    def components(self) -> dict[Component, int]:
        """Reserved bytes per component."""
        totals: dict[Component, int] = {}
        for allocation in self.allocations:
            totals[allocation.component] = totals.get(allocation.component, 0) + allocation.reserved_bytes
        return totals

    @property
    def total_bytes(self) -> int:
        """Reserved bytes of all components."""
        return sum(allocation.reserved_bytes for allocation in self.allocations)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What one launch of one model will hold on one machine."""

    launch: Launch
    hardware: Hardware
    context: ResolvedContext | None
    """The context as llama.cpp rounds and divides it; None when the launch is refused before that."""
    n_ctx_slot: int = 0
    """Tokens one person can use: a slot's cells, but never more than the model was trained on."""
    allocations: tuple[Allocation, ...]
    refusal: str = ""
    """Why llama.cpp would not start this launch, and the way out; empty when it would."""
    missing: str = ""
    """What is not known, so that no verdict can be given; empty when all is."""
    notes: tuple[str, ...] = ()
    """What a person should know beside the figures."""

    def bytes(self, *, component: Component | None = None, device: str | None = None) -> int:
        """Reserved bytes, of one component or device or of all."""
        return sum(allocation.reserved_bytes for allocation in self._selected(component, device))

    def resident_bytes(self, *, component: Component | None = None, device: str | None = None) -> int:
        """Bytes in memory once every slot has worked, of one component or device or of all."""
        return sum(allocation.resident_bytes for allocation in self._selected(component, device))

    def growth_bytes(self, *, component: Component | None = None, device: str | None = None) -> int:
        """Bytes that may come on top over the following days, of one component or device or of all."""
        return sum(allocation.growth_bytes for allocation in self._selected(component, device))

    def _selected(self, component: Component | None, device: str | None) -> Iterable[Allocation]:
        return (
            allocation
            for allocation in self.allocations
            if component in (None, allocation.component) and device in (None, allocation.device)
        )

    @property
    def devices(self) -> tuple[DevicePlan, ...]:
        """The devices that hold anything, in the order of the machine."""
        return tuple(
            DevicePlan(
                name=device.name,
                pool=self.hardware.pool_named(device.pool),
                allocations=tuple(self._selected(None, device.name)),
                max_allocation_bytes=device.max_allocation_bytes,
                cap_bytes=device.cap_bytes,
                pool_verdict=self._pool_verdict(self.hardware.pool_named(device.pool)),
            )
            for device in self.hardware.devices
            if any(self._selected(None, device.name))
        )

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all pools; `refused` and `unknown` come before any arithmetic."""
        if self.refusal:
            return Verdict.REFUSED
        verdicts = {self._pool_verdict(pool) for pool in self.used_pools}
        verdicts |= {device.verdict for device in self.devices}
        if self.missing:
            verdicts.add(Verdict.UNKNOWN)
        return next(verdict for verdict in _WORST_FIRST if verdict in verdicts)

    @property
    def verdict_reason(self) -> str:
        """The verdict in one sentence, with its figures: of the pool that is worst off."""
        if self.refusal:
            return self.refusal
        for device in self.devices:
            if (largest := device.oversized) is not None:
                return (
                    f"The {largest.component} buffer on {device.name} takes {format_bytes(largest.reserved_bytes)} in "
                    f"one piece, more than the {format_bytes(device.max_allocation_bytes or 0)} it can allocate."
                )
            if device.over_cap_bytes:
                return (
                    f"{device.name} may take {format_bytes(device.cap_bytes or 0)} of the machine's memory, and "
                    f"{format_bytes(device.over_cap_bytes)} more are needed."
                )
        pool = self._worst_pool()
        headroom = self._sure_headroom(pool)
        if headroom is None:
            return f"How much {pool.name} memory is usable is not known ({pool.source})."
        if headroom < 0 and self._others_can_give_way(pool):
            return (
                f"{format_bytes(-headroom)} more {pool.name} memory is needed than is free now: other programs are "
                "pushed out, and the machine grows slow."
            )
        if headroom < 0:
            return f"{format_bytes(-headroom)} more {pool.name} memory is needed than is usable now."
        if self.missing:
            return self.missing
        return self._headroom_sentence(pool, headroom)

    def _headroom_sentence(self, pool: Pool, headroom: int) -> str:
        left = f"{format_bytes(headroom)} of {pool.name} memory stay free"
        growth = self._pool_growth(pool)
        if headroom < pool.margin_bytes:
            return f"Only {left}, less than the {format_bytes(pool.margin_bytes)} that keep a machine well."
        if self.launch.cache_ram < 0 and pool == self.hardware.host:
            return f"{left} at first, and the prompt cache may take all of it (--cache-ram -1)."
        if headroom < (unsure := self._uncertainty(pool)):
            return f"{left}, less than the {format_bytes(unsure)} by which the estimates may be off."
        if headroom < growth:
            return f"{left} at first, but {format_bytes(growth)} may come on top later."
        return f"{left}, and {format_bytes(headroom - growth)} after growth." if growth else f"{left}."

    def _worst_pool(self) -> Pool:
        def rank(pool: Pool) -> tuple[int, int]:
            return _WORST_FIRST.index(self._pool_verdict(pool)), self.headroom_bytes(pool) or 0

        return min(self.used_pools, key=rank)

    @property
    def used_pools(self) -> tuple[Pool, ...]:
        """The pools that the launch draws on; the host's always."""
        names = {device.pool for device in self.hardware.devices if any(self._selected(None, device.name))}
        return tuple(pool for pool in self.hardware.pools if pool.name in names or pool == self.hardware.host)

    def _uncertainty(self, pool: Pool) -> int:
        """By how much the estimates may be too low, all together."""
        names = self.hardware.devices_of(pool)
        ranges = [a for a in self.allocations if a.device in names and a.high_bytes is not None]
        return sum(max(0, (a.high_bytes or 0) - a.reserved_bytes) for a in ranges)

    def needed_bytes(self, pool: Pool) -> int:
        """What the launch takes from this pool at the start."""
        names = self.hardware.devices_of(pool)
        return sum(allocation.needed_bytes for allocation in self.allocations if allocation.device in names)

    def headroom_bytes(self, pool: Pool) -> int | None:
        """What of the pool's usable memory stays free; negative when it does not fit."""
        return None if pool.usable_bytes is None else pool.usable_bytes - self.needed_bytes(pool)

    def _sure_headroom(self, pool: Pool) -> int | None:
        """The same; of what is only a range the least counts while so much is missing that it proves nothing."""
        headroom = self.headroom_bytes(pool)
        if headroom is None or not self.missing:
            return headroom
        names = self.hardware.devices_of(pool)
        ranges = [a for a in self.allocations if a.device in names and a.low_bytes is not None]
        return headroom + sum(max(0, a.needed_bytes - (a.low_bytes or 0)) for a in ranges)

    def _others_can_give_way(self, pool: Pool) -> bool:
        return pool.pressure_bytes is not None and self.needed_bytes(pool) <= pool.pressure_bytes

    def _pool_growth(self, pool: Pool) -> int:
        names = self.hardware.devices_of(pool)
        return sum(allocation.growth_bytes for allocation in self.allocations if allocation.device in names)

    def _pool_verdict(self, pool: Pool) -> Verdict:
        headroom = self._sure_headroom(pool)
        if headroom is None:
            return Verdict.UNKNOWN
        if headroom < 0:
            return Verdict.TIGHT if self._others_can_give_way(pool) else Verdict.TOO_BIG
        # Without a limit the prompt cache takes whatever there is.
        unlimited = self.launch.cache_ram < 0 and pool == self.hardware.host
        if unlimited or headroom < max(pool.margin_bytes, self._pool_growth(pool), self._uncertainty(pool)):
            return Verdict.TIGHT
        return Verdict.FITS
