"""What earlier runs taught, as plain values that a prediction takes.

A learned value replaces an estimate and never an exact figure. It names the runs that it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from planner.hardware import DeviceKind, kind_of_device
from planner.memory.plan import Allocation


@dataclass(frozen=True, slots=True)
class LearnedSize:
    """Bytes that a run held, and which run it was."""

    size_bytes: int
    run: str = ""
    """Its id in the record; empty where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """By how much a build's compute buffers are larger or smaller than the formula's."""

    ratio: float
    """What the build reserves over what the formula says."""
    spread: float
    """How far the runs lay from that, as a fraction."""
    runs: tuple[str, ...]

    def applied(self, allocation: Allocation) -> Allocation:
        """The allocation as the build would make it; one that is exact, or told by a dry run, stays as it is."""
        if allocation.component != "compute" or allocation.certainty != "estimated":
            return allocation
        reserved = round(allocation.reserved_bytes * self.ratio)
        return replace(
            allocation,
            reserved_bytes=reserved,
            resident_bytes=round(allocation.resident_bytes * self.ratio),
            low_bytes=round(reserved * (1 - self.spread)),
            high_bytes=round(reserved * (1 + self.spread)),
            certainty="learned",
            reason=f"{self.ratio:.3f} of {allocation.reason}: so much did this build reserve in the runs "
            f"{', '.join(self.runs)}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Everything that runs of one model, machine and engine taught. What is not in it is estimated."""

    overhead: Mapping[tuple[DeviceKind, ...], LearnedSize] = field(default_factory=dict)
    """What the process holds beside its buffers, by the kinds of accelerators that it uses (sorted): their drivers
    take host memory, too."""
    drivers: Mapping[str, LearnedSize] = field(default_factory=dict)
    """What is taken on a device beside llama.cpp's buffers, by the device's name."""
    compute: Mapping[DeviceKind, Correction] = field(default_factory=dict)
    """Of estimated compute buffers, by the back end that they lie on."""

    def corrected(self, allocation: Allocation) -> Allocation:
        """An estimated compute buffer as the runs have it; every other allocation as it is."""
        correction = self.compute.get(kind_of_device(allocation.device))
        return allocation if correction is None else correction.applied(allocation)


NOTHING_LEARNED = Learned()
"""Before the first run."""
