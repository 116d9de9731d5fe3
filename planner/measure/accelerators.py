"""What a server holds on each accelerator while it runs, joined to llama.cpp's names, and what is left there.

Two witnesses: the driver says what a process holds, where it does (not on WSL2, in a container, on a Mac); and what
became less free since before the start, whoever took it. Without an accelerator nothing is opened and nothing asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING

from planner.hardware import HOST_POOL
from planner.measure.guard import WatchedDevice, floor_of
from planner.measure.measurement import DeviceSample
from planner.memory import MemoryPlan

if TYPE_CHECKING:
    from probes import DeviceMemory, Machine
    from probes.device_watch import DeviceWatch

_REST = 20
"""A look is followed by a rest of so many times as long as it took, so that slow drivers cost a twentieth at most."""


def watched_devices(plan: MemoryPlan) -> tuple[WatchedDevice, ...]:
    """The accelerators that a launch uses, each with what must stay free of its memory. What is reached over a
    network is watched where it is.
    """
    used = {device.name for device in plan.devices}
    return tuple(
        WatchedDevice(
            name=device.name,
            label=plan.hardware.pool_named(device.pool).label if device.pool != HOST_POOL else "",
            pci=device.pci,
            shares_memory=device.pool == HOST_POOL,
            floor_bytes=0 if device.pool == HOST_POOL else floor_of(plan.hardware.pool_named(device.pool)),
        )
        for device in plan.hardware.nameable
        if device.name in used and device.kind != "rpc"
    )


@dataclass(frozen=True, slots=True)
class _Free:
    own_bytes: int | None = None
    shared_bytes: int | None = None


class Accelerators:
    """Looks at them from before the start of a server to its end; use it as a context manager around both."""

    def __init__(self, devices: Sequence[WatchedDevice], where: Path | Machine = Path("/")) -> None:
        self._devices = devices
        self._where = where
        self._watch: DeviceWatch | None = None
        self._before: dict[str, _Free] = {}
        self._last: tuple[DeviceSample, ...] = ()
        self._next = 0.0

    def __enter__(self) -> Accelerators:
        if self._devices:
            from probes.device_watch import DeviceWatch  # at the moment of use: most machines have none

            self._watch = DeviceWatch(self._where).__enter__()
            self._before = self._free()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.__exit__(kind, error, trace)

    def look(
        self, pid: int, *, exact: bool, places: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[DeviceSample, ...]:
        """What they hold now, for the server with this process id; unless it must be `exact`, the last look again
        while a driver that is slow to answer rests. `places` are where the server's own log says that they sit: of
        cards that are alike, only it knows which is which.
        """
        if self._watch is None:
            return ()
        start = time.monotonic()
        if exact or start >= self._next:
            held, free = self._watch.held(pid), self._free()
            placed = [replace(device, pci=places.get(device.name, device.pci)) for device in self._devices]
            self._last = tuple(
                self._sample(device, held.devices, held.reasons, free.get(device.pci or "", _Free()))
                for device in placed
            )
            end = time.monotonic()
            self._next = end + _REST * (end - start)
        return self._last

    def _free(self) -> dict[str, _Free]:
        found = () if self._watch is None else self._watch.free()
        return {memory.device: _Free(memory.own_bytes, memory.shared_bytes) for memory in found}

    def _sample(
        self, device: WatchedDevice, held: Sequence[DeviceMemory], reasons: Iterable[str], free: _Free
    ) -> DeviceSample:
        entry = self._entry_of(device, held)
        before = self._before.get(device.pci or "", _Free())
        taken = _drop(before.own_bytes, free.own_bytes)
        if device.shares_memory:
            shared = _drop(before.shared_bytes, free.shared_bytes)
            taken = None if taken is None or shared is None else taken + shared
        own = entry.own_bytes if entry else None
        return DeviceSample(
            device=device.name,
            shares_memory=device.shares_memory,
            own_bytes=own,
            shared_bytes=entry.shared_bytes if entry else None,
            taken_bytes=taken,
            free_bytes=None if device.shares_memory else free.own_bytes,
            reason="" if own is not None else self._why_unknown(held, reasons),
        )

    def _entry_of(self, device: WatchedDevice, held: Sequence[DeviceMemory]) -> DeviceMemory | None:
        """By where it sits. Windows' counters do not say that, so that there must be one of both to be joined."""
        for entry in held:
            if device.pci is not None and entry.device == device.pci:
                return entry
        elsewhere = [entry for entry in held if _is_unplaced(entry) and (entry.own_bytes or entry.shared_bytes)]
        return elsewhere[0] if len(elsewhere) == 1 == len(self._devices) else None

    def _why_unknown(self, held: Sequence[DeviceMemory], reasons: Iterable[str]) -> str:
        adapters = [entry for entry in held if _is_unplaced(entry)]
        if adapters and len(adapters) + len(self._devices) > 2:
            return "Windows counts by adapter, and does not say which of them this is"
        silent = (
            "it is listed on another device, not on this one" if held else "no driver tells what a process holds of it"
        )
        return "; ".join(reasons) or silent


def _is_unplaced(entry: DeviceMemory) -> bool:
    return entry.device.startswith("luid")


def _drop(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else before - now
