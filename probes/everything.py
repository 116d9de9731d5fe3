"""All probes of one machine together, and what they found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from probes.accelerator import DRM, has_accelerator, has_nvidia_driver
from probes.cpu import Cpu, probe_cpu
from probes.gpu import Gpu
from probes.host import HostMemory, probe_host
from probes.machine import Files, Machine, Where, machine_at
from probes.place import Place, probe_place

_Answer = TypeVar("_Answer")

_Found = tuple[tuple[Gpu, ...], tuple[str, ...]]
"""Graphics processors and warnings."""

_PAGE_BYTES = 4096
"""Pages of the setting ttm.pages_limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings that limit how much memory graphics may use. None: not set, or not on this machine."""

    ttm_limit_bytes: int | None = None
    """ttm.pages_limit: how much of the machine's memory AMD's driver may hand out."""
    amdgpu_gtt_bytes: int | None = None
    """amdgpu.gttsize, which is deprecated; None where it is left to the driver."""
    wired_limit_bytes: int | None = None
    """iogpu.wired_limit_mb of a Mac; None for the system's own choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the probes found of one machine."""

    system: str
    place: Place
    host: HostMemory
    cpu: Cpu
    gpus: tuple[Gpu, ...]
    """Every graphics processor, each once: NVIDIA's, AMD's, Intel's, Apple's, then others."""
    settings: Settings
    has_accelerator: bool
    """Whether there is any sign of an accelerator."""
    warnings: tuple[str, ...]
    """What no single figure's own warnings hold."""


def probe_everything(root: Where = Path("/")) -> Findings:
    """What all probes find on the machine at `root`. Never raises: a probe that fails becomes a warning."""
    machine = machine_at(root)
    place = probe_place(machine)
    files = Files(machine)
    gpus: list[Gpu] = []
    warnings: list[str] = [*place.warnings]
    for probe in (_nvidia, _linux, _apple, _windows):
        found, told = probe(machine, place)
        gpus += found
        warnings += told
    settings = _guarded("settings", lambda: _settings(files), Settings(), warnings)
    warnings += _guarded("NVIDIA", lambda: _silent_nvidia(files, gpus, place), [], warnings)
    return Findings(
        system=machine.system,
        place=place,
        host=probe_host(machine),
        cpu=probe_cpu(machine),
        gpus=tuple(gpus),
        settings=settings,
        has_accelerator=bool(gpus) or has_accelerator(machine),
        warnings=tuple(dict.fromkeys([*warnings, *files.warnings])),
    )


# A maker's probe is imported only where there is something for it to look at: most machines have one maker's at most.


def _nvidia(machine: Machine, place: Place) -> _Found:
    if not has_nvidia_driver(machine):
        return (), ()
    from probes.nvidia import probe_nvidia

    return probe_nvidia(machine, is_wsl=place.is_wsl, is_contained=place.container is not None)


def _linux(machine: Machine, place: Place) -> _Found:
    files = Files(machine)
    if machine.system != "Linux" or not files.names(DRM):
        return (), tuple(files.warnings)
    from probes.amd import probe_amd
    from probes.intel import probe_intel

    (amd, amd_told), (intel, intel_told) = probe_amd(machine), probe_intel(machine)
    return (*amd, *intel), (*amd_told, *intel_told)


def _apple(machine: Machine, place: Place) -> _Found:
    if machine.system != "Darwin":
        return (), ()
    from probes.apple import probe_apple

    return probe_apple(machine)


def _windows(machine: Machine, place: Place) -> _Found:
    if machine.system != "Windows":
        return (), ()
    from probes.windows import probe_windows_gpus

    files = Files(machine)
    nothing: tuple[Gpu, ...] = ()
    found = _guarded("adapters", lambda: tuple(probe_windows_gpus(files)), nothing, files.warnings)
    return found, tuple(files.warnings)


def _guarded(name: str, ask: Callable[[], _Answer], otherwise: _Answer, warnings: list[str]) -> _Answer:
    try:
        return ask()
    except Exception as error:  # a probe never raises, whatever the files hold
        warnings.append(f"{name}: {error!r}")
        return otherwise


def _settings(files: Files) -> Settings:
    pages = next(
        (
            limit
            for module in ("ttm", "amdttm")
            if (limit := files.size(f"/sys/module/{module}/parameters/pages_limit")) is not None
        ),
        None,
    )
    gtt_mib = files.integer("/sys/module/amdgpu/parameters/gttsize")
    return Settings(
        ttm_limit_bytes=pages * _PAGE_BYTES if pages else None,
        amdgpu_gtt_bytes=gtt_mib << 20 if gtt_mib is not None and gtt_mib > 0 else None,
        wired_limit_bytes=_wired_limit(files.machine),
    )


def _wired_limit(machine: Machine) -> int | None:
    if machine.system != "Darwin":
        return None
    from probes.apple import wired_limit

    return wired_limit(machine)


def _silent_nvidia(files: Files, gpus: list[Gpu], place: Place) -> list[str]:
    """A card of NVIDIA's that the kernel lists and NVML does not."""
    if any(gpu.vendor == "nvidia" for gpu in gpus) or not files.names(DRM):
        return []
    from probes.drm import cards

    if not any(card.vendor == "10de" for card in cards(files)):
        return []
    remedy = "give it to this container (docker run --gpus all)" if place.container else "install NVIDIA's own driver"
    return [f"An NVIDIA card is here that cannot be used, since its driver does not answer: {remedy}."]
