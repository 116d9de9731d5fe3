"""The parts of a machine: pools, devices, graphics, limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

from planner.units import MIB

HOST_POOL = "host"
CPU_DEVICE = "CPU"

Confidence = Literal["read", "estimated", "low", "simulated"]
"""How far a pool's figures can be trusted. `read`: stated by the system. `estimated`: by a rule. `low`: read, and
known to promise too much. `simulated`: of a machine that is not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Memory that a program holds."""

    name: str | None
    """The program; None where it cannot be known."""
    size_bytes: int | None
    """None where the driver does not say."""
    is_desktop: bool = False
    """Whether it draws a person's screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Physical memory that can run out."""

    name: str
    total_bytes: int | None
    """What exists; None when no probe could tell."""
    usable_bytes: int | None
    """What a new process can get now, limits of containers included; None when no probe could tell."""
    source: str
    """Where the figures come from."""
    label: str = ""
    """What it is, for a person: `RAM`, `NVIDIA GeForce RTX 3090`."""
    confidence: Confidence = "read"
    pressure_bytes: int | None = None
    """Up to here memory can still be had, by pushing other programs out: they are compressed or swapped, and the
    machine grows slow. None where nothing is known beyond `usable_bytes`."""
    held: tuple[Holding, ...] = ()
    """What programs hold of it, most first; empty where nothing tells."""
    bandwidth_gb_per_s: float | None = None
    """How fast it can be read, in 10^9 bytes each second as makers state it; None when not known."""

    @property
    def margin_bytes(self) -> int:
        """What a launch should leave free so that the machine stays well: 10 %, at most 1 GiB.

        1 GiB is the margin that llama.cpp's own `--fit` keeps (`--fit-target`).
        """
        return min(1024 * MIB, (self.usable_bytes or 0) // 10)


DeviceKind = Literal["cpu", "cuda", "rocm", "metal", "vulkan", "sycl", "rpc", "other"]

_KINDS: dict[str, DeviceKind] = {
    "CPU": "cpu",
    "CUDA": "cuda",
    "ROCm": "rocm",
    "MTL": "metal",
    "Metal": "metal",
    "Vulkan": "vulkan",
    "SYCL": "sycl",
    "RPC": "rpc",
}


@lru_cache(maxsize=64)
def kind_of_device(name: str) -> DeviceKind:
    """The back end behind llama.cpp's name of a device: `CUDA0`, `RPC0[127.0.0.1:50052]`, ..."""
    return next((kind for prefix, kind in _KINDS.items() if name.startswith(prefix)), "other")


def kinds_of_devices(names: Iterable[str]) -> tuple[DeviceKind, ...]:
    """The back ends of the accelerators among these devices, sorted."""
    return tuple(sorted({kind_of_device(name) for name in set(names)} - {"cpu"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where llama.cpp places buffers."""

    name: str
    """llama.cpp's name: `CPU`, `CUDA0`, ..."""
    pool: str
    """Name of the pool it draws on."""
    max_allocation_bytes: int | None = None
    """Largest single buffer that it can make; None where nothing limits it."""
    cap_bytes: int | None = None
    """What it may take of its pool at most (Metal's working set); None for all of it."""
    only_named: bool = False
    """Whether llama.cpp uses it only where `--device` names it: graphics that share the machine's memory beside a
    card, and a card that another back end has listed before."""
    pci: str | None = None
    """Where the graphics processor sits that it is, as `0000:01:00.0`; None where that is not known."""
    driver: str | None = None
    """That processor's driver with its version; None where nothing tells."""

    @property
    def kind(self) -> DeviceKind:
        """Its back end."""
        return kind_of_device(self.name)

    @property
    def is_cpu(self) -> bool:
        """Whether it is the processor itself, which llama.cpp does not count among the devices."""
        return self.kind == "cpu"


class SeenDevice(Protocol):
    """A device as an engine's `--list-devices` prints it."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def free_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphics:
    """A graphics processor as the operating system shows it, whether or not an engine can use it."""

    name: str
    vendor: str
    """nvidia, amd, intel, apple or other."""
    pci: str | None
    pool: str
    """Name of the pool that it draws on; one of its own is there only while a device uses it."""
    shares_memory: bool
    """Whether what it uses is the machine's own memory."""
    total_bytes: int | None
    """Its own memory; of one that shares, all that it may take. None: unknown, or without a limit."""
    usable_bytes: int | None
    """The part of that which can be had now."""
    carve_out_bytes: int = 0
    """Of one that shares: memory that firmware set aside for it, which the processor cannot use."""
    carve_out_free_bytes: int = 0
    shared_bytes: int | None = None
    """Of one that shares: what it may take beside the carve-out (GTT). None: without a limit."""
    shared_free_bytes: int | None = None
    device: str | None = None
    """llama.cpp's name for it, as a usual build would say; None where llama.cpp would leave it alone."""
    note: str = ""
    """Why it has no device, or what a person should know of it."""
    max_allocation_bytes: int | None = None
    confidence: Confidence = "read"
    held: tuple[Holding, ...] = ()
    source: str = ""
    driver: str | None = None
    """Its driver with the version, as `NVIDIA 580.95.05`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What keeps memory from being used, and the setting that would change it."""

    what: str
    """A sentence."""
    limit_bytes: int | None
    setting: str
    """How to change it; empty where there is no way."""
    binds: bool = False
    """Whether it is what keeps more memory from being usable now."""
