"""The operating system's view of a machine and an engine's, joined: which device is which graphics processor.

The engine that will run decides what can be used; the operating system knows what there is, who holds it and which
memory is one and the same. Nothing here looks at the machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.hardware.hardware import Hardware
from planner.hardware.values import CPU_DEVICE, HOST_POOL, Device, Graphics, Pool, SeenDevice, kind_of_device
from planner.units import MIB, format_bytes

_INTEGRATED = re.compile(
    r"Intel.*(UHD|HD Graphics|Iris|Arc\(TM\) Graphics|Graphics\s*\()|Radeon(\(TM\))?( \d{3}M)? Graphics"
    r"|Radeon 80[56]0S|GB10|Orin|Thor|Xavier"
)
"""Descriptions of graphics that share the machine's memory, from public `--list-devices` output."""

_VENDORS = {
    "nvidia": re.compile(r"NVIDIA|GeForce|Quadro|Tesla|RTX|GB10|Orin|Thor"),
    "amd": re.compile(r"AMD|Radeon|RADV|gfx\d"),
    "intel": re.compile(r"Intel"),
    "apple": re.compile(r"Apple|Metal"),
}
_PCI = re.compile(r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One graphics processor as both see it."""

    graphics: Graphics | None
    """The operating system's; None where only the engine knows it (another machine's, or no probe for it)."""
    seen: SeenDevice | None
    """The engine's; None where it does not list it."""
    explanation: str
    """Why they differ; empty where they do not."""


def joined(hardware: Hardware, seen: Sequence[SeenDevice]) -> tuple[View, ...]:
    """What the engine lists, each with the operating system's view of it, and then what it does not list."""
    left = list(hardware.graphics)
    first = _first_listings(seen)
    known: dict[str, Graphics | None] = {}
    for device in seen:
        if first[device.name] == device.name:
            graphics = known[device.name] = _match(device, left, hardware)
            if graphics is not None:
                left.remove(graphics)
    has_card = any(graphics is not None and not graphics.shares_memory for graphics in known.values())
    views = []
    for device in seen:
        graphics, other = known[first[device.name]], first[device.name]
        explanation = _explain(graphics, device)
        if other != device.name:
            explanation = f"It is the same card as {other}, and used only where --device names it."
        elif has_card and graphics is not None and graphics.shares_memory:
            explanation = "It has no memory of its own: beside a card it is used only where --device names it."
        views.append(View(graphics=graphics, seen=device, explanation=explanation))
    return (*views, *(View(graphics=g, seen=None, explanation=_why_unlisted(g, has_card)) for g in left))


def _first_listings(seen: Sequence[SeenDevice]) -> dict[str, str]:
    """Each device's name and the one that the same card was listed under first: an engine with several back ends
    lists a card with each.
    """
    first: dict[str, str] = {}
    for device in seen:
        kind, words = kind_of_device(device.name), _words(device.description)
        alike = [
            (kind_of_device(other.name), other.name)
            for other in seen
            if _words(other.description) == words and kind_of_device(other.name) != "rpc"
        ]
        first[device.name] = device.name
        if kind != "rpc" and any(sign.search(device.description) for sign in _VENDORS.values()):
            place = [name for other, name in alike if other == kind].index(device.name)
            others = [name for other, name in alike if other == alike[0][0]]
            first[device.name] = others[place] if place < len(others) else device.name
    return first


def _match(device: SeenDevice, left: Sequence[Graphics], hardware: Hardware) -> Graphics | None:
    """The graphics that a device is: by where it sits, by its name, else the one of its maker nearest in size."""
    if kind_of_device(device.name) == "rpc":
        return None
    pci = _PCI.search(device.description)
    if pci:
        found = next((graphics for graphics in left if graphics.pci == pci[0].lower()), None)
        if found is not None:
            return found
    words = _words(device.description)
    named = [graphics for graphics in left if _words(graphics.name) == words]
    vendor = _vendor(device)
    candidates = named or [graphics for graphics in left if graphics.vendor == vendor]
    host_bytes = hardware.memory.total_bytes or 0
    return min(candidates, key=lambda graphics: _distance(device, graphics, host_bytes), default=None)


def _words(name: str) -> frozenset[str]:
    """A name without what makers and drivers decorate it with."""
    plain = re.sub(r"\((R|TM)\)|\(RADV [^)]*\)|\([^)]*\)", " ", name).lower()
    return frozenset(plain.split()) - {"nvidia", "amd", "intel", "geforce", "graphics"}


def _vendor(device: SeenDevice) -> str | None:
    by_kind = {"cuda": "nvidia", "metal": "apple", "rocm": "amd"}
    known = by_kind.get(kind_of_device(device.name))
    return known or next((name for name, sign in _VENDORS.items() if sign.search(device.description)), None)


def _distance(device: SeenDevice, graphics: Graphics, host_bytes: int) -> int:
    expected = graphics.total_bytes or (host_bytes if graphics.shares_memory else 0)
    return abs(device.total_bytes - expected)


def with_seen(hardware: Hardware, seen: Sequence[SeenDevice]) -> Hardware:
    """The machine with the devices that an engine lists; what it has free is never more than it has.

    llama.cpp uses what it reaches over the network first, then each card once, and graphics that share the
    machine's memory only where there is no card (`src/llama.cpp: llama_prepare_model_devices`).
    """
    pools: list[Pool] = []
    devices: list[Device] = []
    sharing: list[Device] = []
    reached: list[Graphics] = []
    first = _first_listings(seen)
    for view in joined(hardware, seen):
        device, graphics = view.seen, view.graphics
        if device is None:
            continue
        is_again = first[device.name] != device.name
        free = min(device.free_bytes, device.total_bytes)
        made = Device(
            name=device.name,
            pool=first[device.name],
            max_allocation_bytes=graphics.max_allocation_bytes if graphics else None,
            only_named=is_again,
            pci=graphics.pci if graphics else None,
            driver=graphics.driver if graphics else None,
        )
        if graphics.shares_memory if graphics else _shares_memory(device, hardware):
            reached += [graphics] if graphics and uses_carve_out(graphics, device.name) and not is_again else []
            made = replace(made, pool=HOST_POOL, cap_bytes=_cap(device, graphics, free))
            # Metal's device counts as a card.
            (devices if made.kind == "metal" else sharing).append(made)
            continue
        pools += [] if is_again else [_listed(device, graphics, free)]
        devices.append(made)
    has_card = any(device.kind != "rpc" for device in devices)
    ordered = sorted(devices, key=lambda device: (device.only_named, device.kind != "rpc"))
    # Of graphics that share, those of the first back end alone (llama.cpp#23897).
    others = [replace(d, only_named=d.only_named or has_card or d.kind != sharing[0].kind) for d in sharing]
    return on_host(hardware, pools, [*ordered, *others], [] if has_card else reached)


def on_host(
    hardware: Hardware, pools: Sequence[Pool], devices: Sequence[Device], reached: Sequence[Graphics]
) -> Hardware:
    """The machine with these accelerators before its own memory and the processor.

    Memory that firmware set aside for graphics counts to the one pool while a device `reached` it, and then the
    processor may take what is not set aside.
    """
    memory = hardware.memory
    total, usable = memory.total_bytes, memory.usable_bytes
    host, processor = memory, Device(name=CPU_DEVICE, pool=HOST_POOL)
    if reached and total is not None and usable is not None:
        aside = sum(graphics.carve_out_bytes for graphics in reached)
        free = sum(graphics.carve_out_free_bytes for graphics in reached)
        host = replace(memory, total_bytes=total + aside, usable_bytes=usable + free)
        processor = replace(processor, cap_bytes=usable)
    return replace(hardware, pools=(*pools, host), devices=(*devices, processor))


def uses_carve_out(graphics: Graphics, device: str) -> bool:
    """Whether buffers of a device lie in what firmware set aside.

    ROCm takes the machine's own memory alone where the driver may hand out more of that than was set aside, and
    what was set aside alone where not (amdgpu's `apu_prefer_gtt`). Vulkan takes both.
    """
    if not graphics.carve_out_bytes:
        return False
    return kind_of_device(device) != "rocm" or graphics.carve_out_bytes >= (graphics.shared_bytes or 0)


def _cap(device: SeenDevice, graphics: Graphics | None, free: int) -> int | None:
    """What a device may take of the machine's memory: the engine's word, and never beyond what the system's says."""
    known = graphics.usable_bytes if graphics and graphics.vendor == "apple" else None
    caps = [size for size in (free or None, known) if size is not None]
    return min(caps, default=None)


def _shares_memory(device: SeenDevice, hardware: Hardware) -> bool:
    """Whether a device that only the engine knows has no memory of its own."""
    if kind_of_device(device.name) == "metal" or _INTEGRATED.search(device.description):
        return True
    # A device that reports nearly all of the machine's memory as its own has none of its own.
    host = hardware.memory.total_bytes
    return kind_of_device(device.name) != "rpc" and bool(host) and device.total_bytes >= 0.85 * (host or 0)


def _listed(device: SeenDevice, graphics: Graphics | None, free: int) -> Pool:
    source = "the engine's --list-devices"
    if graphics is None:
        return Pool(
            name=device.name,
            total_bytes=device.total_bytes,
            usable_bytes=free,
            source=source,
            label=device.description,
        )
    if graphics.confidence == "low" and graphics.usable_bytes is not None and graphics.usable_bytes < free:
        free, source = graphics.usable_bytes, f"{source}; usable: {graphics.source}"
    # Vulkan adds a window to a card's memory to that memory (llama.cpp#22368).
    total = min(device.total_bytes, graphics.total_bytes or device.total_bytes)
    return Pool(
        name=device.name,
        total_bytes=total,
        usable_bytes=min(free, total),
        source=source,
        label=graphics.name,
        confidence=graphics.confidence,
        held=graphics.held,
    )


_CONTEXT_BYTES = 700 * MIB
"""More than that a driver takes for one program that merely asks (200 to 600 MiB by public reports)."""


def _explain(graphics: Graphics | None, device: SeenDevice) -> str:
    if device.free_bytes > device.total_bytes:
        why = "GGML_CUDA_ENABLE_UNIFIED_MEMORY" if kind_of_device(device.name) == "cuda" else "llama.cpp#29277"
        return f"The engine says that more is free than there is ({why}), so the total counts."
    if graphics is None:
        other = kind_of_device(device.name) == "rpc"
        return "Another process's, over the network." if other else "The operating system has no probe for it."
    if graphics.shares_memory:
        return _explain_shared(graphics, device)
    if graphics.total_bytes is None or graphics.usable_bytes is None:
        return "What the operating system does not tell, the engine does."
    reserved = graphics.total_bytes - device.total_bytes
    missing = graphics.usable_bytes - device.free_bytes
    if 0 < -reserved <= 512 * MIB:
        return f"Of the engine's total, {format_bytes(-reserved)} are a window to the same memory, counted twice."
    if abs(reserved) > graphics.total_bytes // 4:
        return "The sizes differ by much: the engine may see a part of it, or another one."
    if 0 < missing <= _CONTEXT_BYTES:
        return f"{format_bytes(missing)} less: what the driver takes for a program that uses it."
    if missing > _CONTEXT_BYTES:
        return f"{format_bytes(missing)} less is free: something took it in between, or the engine sees a part of it."
    if missing < -MIB:
        why = (
            "what others hold is left out by the engine" if graphics.confidence == "low" else "it was freed in between"
        )
        return f"{format_bytes(-missing)} more: {why}."
    return ""


def _explain_shared(graphics: Graphics, device: SeenDevice) -> str:
    match kind_of_device(device.name):
        case "metal":
            return "llama.cpp counts its own buffers alone as used, so that nearly all is always free."
        case "rocm":
            aside = uses_carve_out(graphics, device.name)
            return f"ROCm uses {'what firmware set aside' if aside else 'the shared part (GTT)'} alone."
        case "vulkan" if graphics.vendor == "amd":
            return "Vulkan adds what firmware set aside and what is shared (GTT)."
    return "It has no memory of its own: what it takes is the machine's."


def _why_unlisted(graphics: Graphics, has_card: bool) -> str:
    if graphics.note:
        return graphics.note
    if graphics.shares_memory and has_card:
        return "llama.cpp leaves graphics without memory of their own alone beside a card."
    builds = {"nvidia": "CUDA or Vulkan", "amd": "ROCm or Vulkan", "intel": "Vulkan or SYCL", "apple": "Metal"}
    build = builds.get(graphics.vendor, "Vulkan")
    return f"This engine does not list it: a build for {build} does, where it finds a driver."
