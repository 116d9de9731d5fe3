"""What limits a machine's memory and which setting would change it, and warnings of the known traps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.hardware.values import Limit
from planner.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from probes import Findings, Gpu, HostMemory

_PAGE_BYTES = 4096
"""Pages of ttm.pages_limit."""


def limits_of(findings: Findings) -> tuple[Limit, ...]:
    """What keeps memory from being used."""
    limits = [*_group_limits(findings), *_host_limits(findings)]
    for gpu in findings.gpus:
        if gpu.shares_memory and gpu.vendor == "amd":
            limits += _apu_limits(findings, gpu)
        if gpu.shares_memory and gpu.vendor == "apple":
            limits += _metal_limits(findings, gpu)
    return tuple(limits)


def _group_limits(findings: Findings) -> Iterator[Limit]:
    place = findings.place
    remedies = {
        "docker": "docker update --memory SIZE --memory-swap SIZE NAME, or mem_limit: SIZE in the compose file",
        "podman": "podman update --memory SIZE NAME",
        "kubernetes": "resources.limits.memory of the pod",
        "lxc": "the container's memory (Proxmox: pct set ID --memory MIB)",
    }
    remedy = remedies.get(place.container or "", "systemctl set-property UNIT MemoryMax=SIZE, or the group's own file")
    who = "This container" if place.container else "A control group"
    for limit in findings.host.limits:
        used = limit.used_bytes
        now = "" if used is None else f", {format_bytes(used - limit.reclaimable_bytes)} of it in use"
        yield Limit(
            what=f"{who} may hold {format_bytes(limit.limit_bytes)}{now} ({limit.source}).",
            limit_bytes=limit.limit_bytes,
            setting=remedy,
            binds=limit.available_bytes is not None and limit.available_bytes == findings.host.usable_bytes,
        )
    if place.has_lxcfs and findings.host.total_bytes and not findings.host.limits:
        yield Limit(
            what=f"This container may hold {format_bytes(findings.host.total_bytes)} (its /proc/meminfo, by lxcfs).",
            limit_bytes=findings.host.total_bytes,
            setting=remedies["lxc"],
        )


def _host_limits(findings: Findings) -> Iterator[Limit]:
    host = findings.host
    if host.arc_max_bytes is not None:
        yield Limit(
            what=f"ZFS may keep up to {format_bytes(host.arc_max_bytes)} of files in memory.",
            limit_bytes=host.arc_max_bytes,
            setting="zfs_arc_max=BYTES in /sys/module/zfs/parameters, or in /etc/modprobe.d/zfs.conf to stay",
        )
    if host.hugepages_bytes:
        yield Limit(
            what=f"{format_bytes(host.hugepages_bytes)} are set aside for huge pages, which llama.cpp does not use.",
            limit_bytes=host.hugepages_bytes,
            setting="sudo sysctl vm.nr_hugepages=0",
        )
    if findings.place.is_wsl and host.total_bytes is not None:
        yield Limit(
            what=f"Windows gives WSL2 {format_bytes(host.total_bytes)} of its memory.",
            limit_bytes=host.total_bytes,
            setting="memory=SIZE below [wsl2] in %UserProfile%\\.wslconfig, then wsl --shutdown",
        )


def _apu_limits(findings: Findings, gpu: Gpu) -> Iterator[Limit]:
    if gpu.shared_total_bytes is not None:
        total = (findings.host.total_bytes or 0) + (gpu.total_bytes or 0)
        pages = max(0, total - max(4 * GIB, total // 8)) // _PAGE_BYTES
        more = f"; {pages} would allow {format_bytes(pages * _PAGE_BYTES)}"
        yield Limit(
            what=f"The driver may hand out {format_bytes(gpu.shared_total_bytes)} of the machine's memory (GTT).",
            limit_bytes=gpu.shared_total_bytes,
            setting="ttm.pages_limit on the kernel's command line"
            + (more if pages * _PAGE_BYTES > gpu.shared_total_bytes else ""),
        )
    if (gpu.total_bytes or 0) >= GIB:
        yield Limit(
            what=f"Firmware set {format_bytes(gpu.total_bytes or 0)} aside for graphics: programs cannot use it.",
            limit_bytes=gpu.total_bytes,
            setting="the BIOS (UMA frame buffer, or dedicated graphics memory): the least is best on Linux",
        )


def _metal_limits(findings: Findings, gpu: Gpu) -> Iterator[Limit]:
    size, memory = gpu.shared_total_bytes, findings.host.total_bytes
    if size is None:
        return
    setting = ""
    if memory is not None and (most := memory - max(4 * GIB, memory // 8)) > size:
        setting = f"sudo sysctl iogpu.wired_limit_mb={most // MIB} (until the next restart)"
    set_by = "as iogpu.wired_limit_mb says" if findings.settings.wired_limit_bytes else "by macOS's own choice"
    yield Limit(
        what=f"Graphics may keep {format_bytes(size)} of the memory in use at once, {set_by}.",
        limit_bytes=size,
        setting=setting,
    )


def warnings_of(findings: Findings) -> tuple[str, ...]:
    """What a person should know: what could not be read, and the known traps that this machine has."""
    warnings = [*findings.host.warnings, *findings.cpu.warnings, *findings.warnings]
    warnings += [warning for gpu in findings.gpus for warning in gpu.warnings]
    warnings += _memory_traps(findings)
    warnings += _processor_traps(findings)
    for gpu in findings.gpus:
        warnings += _graphics_traps(findings, gpu)
    return tuple(dict.fromkeys(warnings))


def _memory_traps(findings: Findings) -> Iterator[str]:
    host = findings.host
    if host.arc_bytes:
        yield (
            f"ZFS holds {format_bytes(host.arc_bytes)} of files beyond its minimum. It gives them up, but not at "
            "once, so that four fifths of it count as usable."
        )
    if findings.place.is_wsl and any(gpu.vendor == "nvidia" for gpu in findings.gpus):
        yield "On WSL2 a card runs out about 2 GiB before it says so; that much is taken off what is free."
    if findings.place.container and host.limits and host.total_bytes is not None:
        yield (
            f"llama.cpp's own --fit does not see the container's limit: it takes all {format_bytes(host.total_bytes)} "
            "of the host as free."
        )
    swapped = _swapped(host)
    if swapped >= GIB:
        yield f"{format_bytes(swapped)} are swapped out already: memory is short on this machine."


def _swapped(host: HostMemory) -> int:
    if host.swap_total_bytes is None or host.swap_free_bytes is None:
        return 0
    return host.swap_total_bytes - host.swap_free_bytes


def _processor_traps(findings: Findings) -> Iterator[str]:
    """Instruction sets that engines need. With none known, nothing can be said."""
    cpu = findings.cpu
    if cpu.architecture != "x86_64" or not cpu.features or "avx2" in cpu.features:
        return
    if "hypervisor" in cpu.features and not {"avx", "ssse3"} & cpu.features:
        yield (
            "The virtual machine hides what its processor can do (no AVX): set its CPU type to host "
            "(Proxmox: cpu: host), or every engine is several times slower."
        )
        return
    has = "AVX but no AVX2" if "avx" in cpu.features else "no AVX"
    yield (
        f"This processor has {has}. The llama-server that comes with planner needs AVX2 and loads no model here; "
        "llama.cpp's own releases choose their code at the start and run."
    )


def _graphics_traps(findings: Findings, gpu: Gpu) -> Iterator[str]:
    host = findings.host
    if gpu.vendor == "nvidia" and gpu.shares_memory and host.hugepages_bytes:
        yield (
            f"With huge pages set aside, llama.cpp takes {gpu.name}'s free memory to be their free part, "
            f"{format_bytes(host.hugepages_free_bytes)}: set vm.nr_hugepages=0."
        )
    if gpu.vendor == "amd" and gpu.shares_memory and findings.settings.amdgpu_gtt_bytes:
        yield "amdgpu.gttsize is set, which is deprecated and in the way: set ttm.pages_limit alone."
    aside, shared = gpu.total_bytes or 0, gpu.shared_total_bytes
    if gpu.vendor == "amd" and gpu.shares_memory and shared is not None and aside > shared:
        yield (
            f"{format_bytes(aside)} belong to graphics alone, and ROCm then uses nothing else. Set the least in the "
            "BIOS and raise ttm.pages_limit: all memory is then there for both."
        )
    if findings.system == "Windows" and not gpu.shares_memory:
        yield (
            f"Where {gpu.name} is full, Windows' driver moves buffers to RAM instead of failing: what does not fit "
            "runs, and slowly."
        )
