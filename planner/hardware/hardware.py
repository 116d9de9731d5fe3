"""`Hardware`: one machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from planner.errors import PlannerError, UsageError
from planner.hardware.values import CPU_DEVICE, HOST_POOL, Device, Graphics, Limit, Pool, SeenDevice

if TYPE_CHECKING:
    from probes import Findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One machine: its pools, its devices and its processor."""

    pools: tuple[Pool, ...]
    devices: tuple[Device, ...]
    graphics: tuple[Graphics, ...] = ()
    """Every graphics processor that the operating system shows, also those that no device stands for."""
    limits: tuple[Limit, ...] = ()
    """What limits its memory, and which setting would change that."""
    system: str = ""
    """Its operating system and what it runs in, for a person: `Linux, in a Docker container`."""
    board: str | None = None
    """Its product name, where that is known."""
    cpu_model: str | None = None
    cpu_architecture: str = "x86_64"
    """`x86_64`, `aarch64` or `arm64`: decides which weights the CPU back end rearranges."""
    cpu_features: frozenset[str] = frozenset()
    """Instruction sets, spelled as in /proc/cpuinfo."""
    cpu_cores: int | None = None
    """Cores this process may use."""
    swap_bytes: int | None = None
    """Swap that exists; it is told, and never part of a plan."""
    warnings: tuple[str, ...] = ()
    may_have_accelerators: bool = False
    """Whether the system shows any sign of one; which ones llama.cpp can use, only an engine says."""

    @classmethod
    def detect(cls) -> Hardware:
        """This machine as it is now. Never raises: what cannot be read is None, with a warning."""
        import probes  # at the moment of use: a prediction for another machine needs no probe

        return _assembled(probes.probe_everything())

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Hardware:
        """The machine that a report was made of: what `python -m probes --json` printed there.

        Raises PlannerError where the document is no such report.
        """
        import probes

        try:
            machine = probes.Machine.replay(probes.Report.from_document(report))
        except ValueError as error:
            raise PlannerError(
                f"This is no report of a machine: {error}.",
                "Make one with `python -m probes --json` or `planner hardware --json`.",
            ) from None
        return _assembled(probes.probe_everything(machine))

    @classmethod
    def simulate(
        cls,
        *,
        ram: int,
        vram: Sequence[int] = (),
        unified: bool = False,
        max_allocation: int | None = None,
        cpu_features: frozenset[str] = frozenset({"avx", "avx2", "f16c", "fma", "bmi2"}),
        cpu_architecture: str = "x86_64",
    ) -> Hardware:
        """A machine with `ram` bytes of free host memory, a processor with AVX2, and one CUDA card for each
        entry of `vram` with so many bytes free (and no buffer larger than `max_allocation`). `unified` gives it
        graphics that share the RAM, all of it, as a Vulkan device.
        """
        if min((ram, *vram)) <= 0:
            raise UsageError("A simulated machine needs RAM, and each of its cards needs VRAM.")
        cards = [f"CUDA{index}" for index in range(len(vram))]
        sharing = [Device(name="Vulkan0", pool=HOST_POOL, max_allocation_bytes=max_allocation)] if unified else []
        return cls(
            pools=(
                *(_simulated(name, size) for name, size in zip(cards, vram, strict=True)),
                _simulated(HOST_POOL, ram),
            ),
            devices=(
                *(Device(name=name, pool=name, max_allocation_bytes=max_allocation) for name in cards),
                *sharing,
                Device(name=CPU_DEVICE, pool=HOST_POOL),
            ),
            cpu_architecture=cpu_architecture,
            cpu_features=cpu_features,
        )

    def with_accelerators(self, seen: Sequence[SeenDevice]) -> Hardware:
        """The machine with the devices that an engine lists, in place of those that the system suggests.

        One that shares the machine's memory (Metal, integrated graphics, GB10, Jetson) draws on the host's pool,
        up to what it may take of it; every other one has memory of its own.
        """
        from planner.hardware.views import with_seen

        return with_seen(self, seen)

    @property
    def accelerators(self) -> tuple[Device, ...]:
        """What llama.cpp uses unless it is told otherwise, in its order: everything but the processor."""
        return tuple(device for device in self.nameable if not device.only_named)

    @property
    def nameable(self) -> tuple[Device, ...]:
        """What `--device` may name, in llama.cpp's order: everything but the processor."""
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

    @property
    def memory(self) -> Pool:
        """The host's memory that the processor can use: without what firmware set aside for graphics."""
        processor = next((device for device in self.devices if device.is_cpu), None)
        if processor is None or processor.cap_bytes is None:
            return self.host
        aside = sum(graphics.carve_out_bytes for graphics in self.graphics)
        total = self.host.total_bytes
        return replace(
            self.host, total_bytes=None if total is None else total - aside, usable_bytes=processor.cap_bytes
        )


def detect_with_report() -> tuple[Hardware, dict[str, Any]]:
    """This machine as it is now, and the report of all that was read of it."""
    import probes

    machine = probes.Machine()
    hardware = _assembled(probes.probe_everything(machine))
    return hardware, machine.report.to_document()


def _assembled(findings: Findings) -> Hardware:
    from planner.hardware.assemble import assemble

    return assemble(findings)


def _simulated(name: str, size: int) -> Pool:
    return Pool(name=name, total_bytes=size, usable_bytes=size, source="simulated", confidence="simulated")
