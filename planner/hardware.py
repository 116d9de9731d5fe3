"""The machine a launch is planned for, as plain values.

A `Pool` is physical memory that can run out; a `Device` is where llama.cpp places buffers, and draws on one
pool. `Hardware.detect()` asks `probes` about this machine, `Hardware.simulate()` makes one.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where llama.cpp places buffers."""

    name: str
    """llama.cpp's name: `CPU`, `CUDA0`, ..."""
    pool: str
    """Name of the pool it draws on."""


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
        )

    @classmethod
    def simulate(
        cls,
        *,
        ram: int,
        cpu_features: frozenset[str] = frozenset({"avx", "avx2", "f16c", "fma", "bmi2"}),
        cpu_architecture: str = "x86_64",
    ) -> Hardware:
        """A machine with `ram` bytes of free host memory, no accelerator, and a processor with AVX2."""
        if ram <= 0:
            raise UsageError(f"ram is {ram} bytes; a machine needs some.")
        return cls(
            pools=(Pool(name=HOST_POOL, total_bytes=ram, usable_bytes=ram, source="simulated"),),
            devices=(Device(name=CPU_DEVICE, pool=HOST_POOL),),
            cpu_architecture=cpu_architecture,
            cpu_features=cpu_features,
        )

    def pool_named(self, name: str) -> Pool:
        """The pool with this name."""
        return next(pool for pool in self.pools if pool.name == name)

    @property
    def host(self) -> Pool:
        """The memory of the machine itself."""
        return self.pool_named(HOST_POOL)
