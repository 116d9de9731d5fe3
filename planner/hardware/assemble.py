"""From what the probes found to pools and devices. Pure, so that a report of another machine means the same here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.hardware.advice import limits_of, warnings_of
from planner.hardware.hardware import Hardware
from planner.hardware.values import CPU_DEVICE, HOST_POOL, Device, Graphics, Holding, Pool
from planner.hardware.views import on_host, uses_carve_out
from planner.units import GIB

if TYPE_CHECKING:
    from probes import Findings, Gpu

METAL_RESERVE_BYTES = 2 * GIB
"""What a plan stays below Metal's working set: beyond it macOS refuses no allocation, but the first prompt fails
(antirez/ds4#909: 108.0 GiB planned of 107.5)."""

_PREFIXES = {"nvidia": "CUDA", "amd": "Vulkan", "intel": "Vulkan", "apple": "MTL", "other": "Vulkan"}
"""What a usual build of llama.cpp calls its devices. ROCm, SYCL and others show themselves with the engine."""


def assemble(findings: Findings) -> Hardware:
    """The machine that was found; its devices are those that a usual build of llama.cpp would list."""
    graphics = _with_devices(findings.gpus)
    is_shared = any(card.device and card.shares_memory for card in graphics)
    hardware = Hardware(
        pools=(_memory_pool(findings, is_shared),),
        devices=(Device(name=CPU_DEVICE, pool=HOST_POOL),),
        graphics=tuple(graphics),
        limits=limits_of(findings),
        system=_system(findings),
        board=findings.place.board,
        cpu_model=findings.cpu.model,
        cpu_architecture=findings.cpu.architecture,
        cpu_features=findings.cpu.features,
        cpu_cores=findings.cpu.logical_cores,
        swap_bytes=findings.host.swap_total_bytes,
        warnings=warnings_of(findings),
        may_have_accelerators=findings.has_accelerator,
    )
    pools = [_card_pool(card) for card in graphics if card.device and not card.shares_memory]
    used = [card for card in graphics if card.device]
    reached = [card for card in used if card.shares_memory and uses_carve_out(card, card.device or "")]
    return on_host(hardware, pools, [_device(card) for card in used], reached)


def _memory_pool(findings: Findings, is_shared: bool) -> Pool:
    host = findings.host
    metal = next((gpu for gpu in findings.gpus if gpu.vendor == "apple" and gpu.shares_memory), None)
    pressure = None
    if metal is not None and metal.shared_total_bytes is not None and host.usable_bytes is not None:
        pressure = max(host.usable_bytes, metal.shared_total_bytes - METAL_RESERVE_BYTES)
    return Pool(
        name=HOST_POOL,
        total_bytes=host.total_bytes,
        usable_bytes=host.usable_bytes,
        source="; ".join(host.sources),
        label="one memory for programs and graphics" if is_shared else "RAM",
        confidence="estimated" if host.arc_bytes else "read",
        pressure_bytes=pressure,
    )


def _graphics(gpu: Gpu) -> Graphics:
    held = tuple(Holding(name=h.name, size_bytes=h.size_bytes, is_desktop=h.is_desktop) for h in gpu.holders)
    common = Graphics(
        name=gpu.name,
        vendor=gpu.vendor,
        pci=gpu.pci,
        pool=HOST_POOL if gpu.shares_memory else gpu.name,
        shares_memory=gpu.shares_memory,
        total_bytes=gpu.total_bytes,
        usable_bytes=gpu.free_bytes,
        max_allocation_bytes=gpu.max_allocation_bytes,
        confidence=gpu.confidence,
        held=held,
        source="; ".join(gpu.sources),
        driver=gpu.driver,
    )
    return _sharing(common, gpu) if gpu.shares_memory else common


def _sharing(common: Graphics, gpu: Gpu) -> Graphics:
    """Graphics without memory of their own: what they may take of the machine's, all in all."""
    aside, aside_free = gpu.total_bytes or 0, gpu.free_bytes or 0
    total, free = gpu.shared_total_bytes, gpu.shared_free_bytes
    if gpu.vendor == "apple" and free is not None:
        free = max(0, free - METAL_RESERVE_BYTES)
    return replace(
        common,
        total_bytes=None if total is None else aside + total,
        usable_bytes=None if free is None else aside_free + free,
        carve_out_bytes=aside,
        carve_out_free_bytes=aside_free,
        shared_bytes=total,
        shared_free_bytes=free,
    )


def _with_devices(gpus: Sequence[Gpu]) -> list[Graphics]:
    """The graphics with llama.cpp's names for those that it would use: cards, or else what shares memory
    (`src/llama.cpp: llama_prepare_model_devices`).
    """
    has_card = any(not gpu.shares_memory for gpu in gpus)
    counts: dict[str, int] = {}
    named = []
    for index, gpu in enumerate(gpus):
        graphics = _graphics(gpu)
        has_slice = any(other.slice is not None for other in gpus[:index])
        if note := _why_left_alone(gpu, has_card=has_card, has_slice=has_slice):
            named.append(replace(graphics, note=note))
            continue
        prefix = _PREFIXES[gpu.vendor]
        device = f"{prefix}{counts.setdefault(prefix, 0)}"
        counts[prefix] += 1
        named.append(replace(graphics, device=device, pool=HOST_POOL if gpu.shares_memory else device))
    return named


def _why_left_alone(gpu: Gpu, *, has_card: bool, has_slice: bool) -> str:
    """Why plans use no device for it; empty where they do."""
    if gpu.shares_memory and has_card:
        return "llama.cpp leaves graphics without memory of their own alone beside a card."
    if gpu.shares_memory and gpu.vendor in ("intel", "other"):
        return "Plans leave it to the processor, since it computes no faster, unless the engine lists it."
    if not gpu.shares_memory and not gpu.total_bytes:
        return "How much memory it has is not known, so no plan uses it."
    if gpu.slice is not None and has_slice:
        return "CUDA opens one MIG slice for a program, and takes the first."
    return ""


def _card_pool(card: Graphics) -> Pool:
    return Pool(
        name=card.pool,
        total_bytes=card.total_bytes,
        usable_bytes=card.usable_bytes,
        source=card.source,
        label=card.name,
        confidence=card.confidence,
        held=card.held,
    )


def _device(card: Graphics) -> Device:
    return Device(
        name=card.device or "",
        pool=card.pool,
        cap_bytes=card.usable_bytes if card.shares_memory else None,
        max_allocation_bytes=card.max_allocation_bytes,
        pci=card.pci,
        driver=card.driver,
    )


def _system(findings: Findings) -> str:
    place = findings.place
    words = ["WSL2" if place.is_wsl else {"Darwin": "macOS"}.get(findings.system, findings.system)]
    if place.container:
        kinds = {"docker": "a Docker", "podman": "a Podman", "lxc": "an LXC", "kubernetes": "a Kubernetes"}
        words.append(f"in {kinds.get(place.container, 'a')} container")
    elif "hypervisor" in findings.cpu.features and not place.is_wsl:
        words.append("in a virtual machine")
    return ", ".join(word for word in words if word)
