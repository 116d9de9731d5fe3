"""What ends a run before the machine suffers: too little memory left, swapping, or too much time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from planner.engine.faults import EngineFault
from planner.hardware import Pool
from planner.measure.measurement import Sample
from planner.units import MIB, format_bytes
from probes import HostMemory, probe_host

DEADLINE_S = 3600.0
"""How long one run may take, a soak not counted."""
_SWAP_BYTES = MIB
"""What the server may have in swap; a few idle pages say nothing yet."""
_HOST_SWAP_BYTES = 64 * MIB
"""By how much the swap of the whole machine may grow, whoever is to blame."""


def floor_of(pool: Pool) -> int:
    """What of a pool's memory a run must leave alone: a quarter of what keeps the machine well, 256 MiB at most.

    A launch that is predicted to leave less is not started, and one that leaves less while it runs is ended.
    """
    return pool.margin_bytes // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedDevice:
    """An accelerator that a run uses."""

    name: str
    """llama.cpp's."""
    label: str
    """What it is, for a person; empty where its memory is the machine's."""
    pci: str | None
    """Where it sits; None where that is not known."""
    shares_memory: bool
    """Whether its memory is the machine's: that one pool is looked at once."""
    floor_bytes: int
    """A run is ended where less of its own memory is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a run may cost."""

    floor_bytes: int = 0
    """It is ended where less of the host's memory is usable."""
    devices: tuple[WatchedDevice, ...] = ()
    """The accelerators that it uses, each with a floor of its own."""
    deadline_s: float = DEADLINE_S
    """It is ended when it has taken so long, from its start."""


class Guard:
    """Looks at the machine beside a run and says when it has to end."""

    def __init__(self, limits: Limits, look: Callable[[], HostMemory] = probe_host) -> None:
        self._limits = limits
        self._look = look
        self._start = time.monotonic()
        self._swap_before = _swap_used(look())

    def objection(self, sample: Sample | None) -> EngineFault | None:
        """Why the run has to end now; None while it may go on. `sample` is the server's memory, if it is known."""
        if time.monotonic() - self._start > self._limits.deadline_s:
            return EngineFault(
                f"The run was ended at its deadline of {self._limits.deadline_s / 60:.3g} minutes{_while(sample)}.",
                "Give it more time with --deadline MINUTES, or less to read with --fill.",
                kind="hang",
            )
        host = self._look()
        if host.usable_bytes is not None and host.usable_bytes < self._limits.floor_bytes:
            return _fault(
                f"only {format_bytes(host.usable_bytes)} of memory were left, less than the "
                f"{format_bytes(self._limits.floor_bytes)} that the machine needs{_while(sample)}"
            )
        short = None if sample is None else self._short_device(sample)
        if short is not None:
            return short
        swapped = 0 if sample is None or sample.swap_bytes is None else sample.swap_bytes
        if swapped > _SWAP_BYTES:
            return _fault(f"{format_bytes(swapped)} of the server were swapped out{_while(sample)}")
        used = _swap_used(host)
        if used is not None and self._swap_before is not None and used - self._swap_before > _HOST_SWAP_BYTES:
            return _fault(f"the machine began to swap ({format_bytes(used - self._swap_before)} more){_while(sample)}")
        return None

    def _short_device(self, sample: Sample) -> EngineFault | None:
        for device in self._limits.devices:
            seen = sample.device(device.name)
            free = None if seen is None else seen.free_bytes
            if free is not None and free < device.floor_bytes:
                name = f"{device.name} ({device.label})" if device.label else device.name
                return _fault(
                    f"only {format_bytes(free)} of memory were left on {name}, less than the "
                    f"{format_bytes(device.floor_bytes)} that it needs{_while(sample)}"
                )
        return None


def _fault(reason: str) -> EngineFault:
    return EngineFault(
        f"The run was ended to keep the machine well: {reason}.",
        "Ask for less context, fewer people or a smaller cache type, or end other programs.",
        kind="guard",
    )


def _while(sample: Sample | None) -> str:
    return "" if sample is None else f" ({sample.phase})"


def _swap_used(host: HostMemory) -> int | None:
    if host.swap_total_bytes is None or host.swap_free_bytes is None:
        return None
    return host.swap_total_bytes - host.swap_free_bytes
