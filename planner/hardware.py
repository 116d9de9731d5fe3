"""The machine a launch is planned for, as plain values.

A `Pool` is physical memory that can run out; a `Device` is where llama.cpp places buffers, and draws on one
pool. `Hardware.detect()` asks `probes` about this machine, `Hardware.simulate()` makes one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from planner.errors import UsageError
from planner.units import MIB

HOST_POOL = "host"
CPU_DEVICE = "CPU"


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


def kind_of_device(name: str) -> DeviceKind:
    """The back end behind llama.cpp's name of a device: `CUDA0`, `RPC0[127.0.0.1:50052]`, ..."""
    return next((kind for prefix, kind in _KINDS.items() if name.startswith(prefix)), "other")


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


_INTEGRATED = re.compile(
    r"Intel.*(UHD|HD Graphics|Iris|Arc\(TM\) Graphics|Graphics\s*\()|Radeon(\(TM\))?( \d{3}M)? Graphics"
    r"|GB10|Orin|Thor|Xavier"
)
"""Descriptions of graphics that share the machine's memory, from public `--list-devices` output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One machine: its pools, its devices and its processor."""

    pools: tuple[Pool, ...]
    devices: tuple[Device, ...]
    cpu_model: str | None = None
    cpu_architecture: str = "x86_64"
    """`x86_64`, `aarch64` or `arm64`: decides which weights the CPU back end rearranges."""
    cpu_features: frozenset[str] = frozenset()
    """Instruction sets, spelled as in /proc/cpuinfo."""
    cpu_cores: int | None = None
    """Cores this process may use."""
    warnings: tuple[str, ...] = ()
    may_have_accelerators: bool = False
    """Whether the system shows any sign of one; which ones llama.cpp can use, only an engine says."""

    @classmethod
    def detect(cls) -> Hardware:
        """This machine as it is now. Never raises: what cannot be read is None, with a warning."""
        import probes  # at the moment of use: a prediction for another machine needs no probe

        host = probes.probe_host()
        cpu = probes.probe_cpu()
        return cls(
            pools=(
                Pool(
                    name=HOST_POOL,
                    total_bytes=host.total_bytes,
                    usable_bytes=host.usable_bytes,
                    source="; ".join(host.sources),
                ),
            ),
            devices=(Device(name=CPU_DEVICE, pool=HOST_POOL),),
            cpu_model=cpu.model,
            cpu_architecture=cpu.architecture,
            cpu_features=cpu.features,
            cpu_cores=cpu.logical_cores,
            warnings=(*host.warnings, *cpu.warnings),
            may_have_accelerators=probes.has_accelerator(),
        )

    @classmethod
    def simulate(
        cls,
        *,
        ram: int,
        vram: Sequence[int] = (),
        max_allocation: int | None = None,
        cpu_features: frozenset[str] = frozenset({"avx", "avx2", "f16c", "fma", "bmi2"}),
        cpu_architecture: str = "x86_64",
    ) -> Hardware:
        """A machine with `ram` bytes of free host memory, a processor with AVX2, and one CUDA card for each
        entry of `vram` with so many bytes free (and no buffer larger than `max_allocation`).
        """
        if min((ram, *vram)) <= 0:
            raise UsageError("A simulated machine needs RAM, and each of its cards needs VRAM.")
        cards = [f"CUDA{index}" for index in range(len(vram))]
        return cls(
            pools=(
                *(_simulated(name, size) for name, size in zip(cards, vram, strict=True)),
                _simulated(HOST_POOL, ram),
            ),
            devices=(
                *(Device(name=name, pool=name, max_allocation_bytes=max_allocation) for name in cards),
                Device(name=CPU_DEVICE, pool=HOST_POOL),
            ),
            cpu_architecture=cpu_architecture,
            cpu_features=cpu_features,
        )

    def with_accelerators(self, seen: Sequence[SeenDevice]) -> Hardware:
        """The machine with the devices that an engine lists.

        One that shares the machine's memory (Metal, integrated graphics, GB10, Jetson) draws on the host's pool,
        up to what it may take of it; every other one has memory of its own.
        """
        pools: list[Pool] = []
        devices: list[Device] = []
        for device in seen:
            free = min(device.free_bytes, device.total_bytes)
            if self._shares_memory(device):
                devices.append(Device(name=device.name, pool=HOST_POOL, cap_bytes=free or None))
                continue
            pools.append(_listed(device.name, device.total_bytes, free))
            devices.append(Device(name=device.name, pool=device.name))
        return replace(self, pools=(*pools, *self.pools), devices=(*devices, *self.devices))

    def _shares_memory(self, device: SeenDevice) -> bool:
        if kind_of_device(device.name) == "metal" or _INTEGRATED.search(device.description):
            return True
        # A device that reports nearly all of the machine's memory as its own has none of its own.
        host = self.host.total_bytes
        return kind_of_device(device.name) != "rpc" and bool(host) and device.total_bytes >= 0.85 * (host or 0)

    @property
    def accelerators(self) -> tuple[Device, ...]:
        """What llama.cpp calls devices, in its order: everything but the processor."""
        return tuple(device for device in self.devices if not device.is_cpu)

    def pool_named(self, name: str) -> Pool:
        """The pool with this name."""
        return next(pool for pool in self.pools if pool.name == name)

    def devices_of(self, pool: Pool) -> frozenset[str]:
        """Names of the devices that draw on this pool."""
        return frozenset(device.name for device in self.devices if device.pool == pool.name)

    @property
    def host(self) -> Pool:
        """The memory of the machine itself."""
        return self.pool_named(HOST_POOL)


def _listed(name: str, total: int, free: int) -> Pool:
    return Pool(name=name, total_bytes=total, usable_bytes=free, source="the engine's --list-devices")


def _simulated(name: str, size: int) -> Pool:
    return Pool(name=name, total_bytes=size, usable_bytes=size, source="simulated")
