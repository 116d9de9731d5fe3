"""AMD's processors on Linux, by the files of the driver amdgpu. Made from public samples; no such card was seen.

Plain files are enough: AMD's own libraries print to standard output, fail without ROCm, and give a processor with
built-in graphics the memory that firmware set aside as all it has (ROCm/rocm-systems#8475).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from probes._files import to_integer
from probes.drm import Card, Client, cards, driver_version, drm_clients, holders_of
from probes.gpu import Gpu
from probes.machine import Files, Where

_NODES = "/sys/class/kfd/kfd/topology/nodes"
_GIB = 1 << 30
_APU_TARGETS = frozenset({90002, 90012, 100303, 100305, 100306, 110003, 110500, 110501, 110502, 110503})
"""gfx_target_version of processors with built-in graphics: gfx902, gfx90c, gfx1033, gfx1035, gfx1036, gfx1103,
gfx1150 to gfx1153 (major x 10000 + minor x 100 + step)."""
_APU_DEVICES = frozenset(
    "15d8 15dd 15e7 1636 1638 164c 163f 164d 1681 164e 15bf 15c8 1900 1901 150e 1114 1586 13c0".split()
)
"""PCI devices of the same: Raven to Strix Halo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """What the compute driver (KFD) knows of a processor."""

    render_minor: int
    device: int
    target: int
    has_cores: bool


def probe_amd(root: Where = Path("/")) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """AMD's processors, and the warnings. Never raises."""
    files = Files(root)
    try:
        found = [card for card in cards(files) if card.vendor == "1002"]
        if not found:
            return (), ()
        nodes = _nodes(files)
        clients = drm_clients(files, found)
        gpus = tuple(gpu for card in found if (gpu := _gpu(files, card, nodes, clients)) is not None)
    except Exception as error:  # a probe never raises, whatever the files hold
        return (), (*files.warnings, f"amdgpu: {error!r}")
    return gpus, tuple(files.warnings)


def _gpu(files: Files, card: Card, nodes: list[_Node], clients: list[Client]) -> Gpu | None:
    sizes = {
        name: files.size(f"{card.directory}/mem_info_{name}")
        for name in ("vram_total", "vram_used", "gtt_total", "gtt_used")
    }
    name = card.name
    if sizes["vram_total"] is None:
        driver = f"driver {card.driver}" if card.driver else "no driver"
        files.warnings.append(f"{name}: no mem_info_vram_total, so its memory is not known ({driver})")
        return None
    node = _node_of(files, card, nodes)
    shares, why = _shares_memory(files, card, node, sizes["vram_total"], sizes["gtt_total"])
    if why is None:
        files.warnings.append(
            f"{name}: whether it shares the machine's memory is not clear, so it counts as a card of its own"
        )
    return Gpu(
        vendor="amd",
        name=name,
        pci=card.pci,
        shares_memory=shares,
        total_bytes=sizes["vram_total"],
        free_bytes=_left(files, name, "vram", sizes),
        shared_total_bytes=sizes["gtt_total"] if shares else None,
        shared_free_bytes=_left(files, name, "gtt", sizes) if shares else None,
        driver=driver_version(files, card.driver),
        holders=holders_of(clients, card, shared=shares),
        sources=_sources(card, shares, why),
    )


def _left(files: Files, name: str, kind: str, sizes: dict[str, int | None]) -> int | None:
    total, used = sizes[f"{kind}_total"], sizes[f"{kind}_used"]
    if total is None or used is None:
        return None
    if used > total:
        files.warnings.append(f"{name}: mem_info_{kind}_used {used} is above its total, so nothing counts as free")
    return max(0, total - used)


def _sources(card: Card, shares: bool, why: str | None) -> tuple[str, ...]:
    place = f"{card.directory}/mem_info"
    sources = [f"total_bytes: {place}_vram_total", f"free_bytes: {place}_vram_total - {place}_vram_used"]
    if shares:
        sources += [f"shared_total_bytes: {place}_gtt_total", f"shares_memory: {why}"]
    return tuple(sources)


def _shares_memory(files: Files, card: Card, node: _Node | None, vram: int, gtt: int | None) -> tuple[bool, str | None]:
    """Whether the processor has no memory of its own, and how that is known; None where it is a guess.

    A large carve-out looks like a card, so the device itself is asked first, and sizes only at the end
    (ollama's discover/amd.go).
    """
    if card.device in _APU_DEVICES:
        return True, f"PCI device {card.device}"
    if node is not None and node.target in _APU_TARGETS:
        return True, f"KFD gfx_target_version {node.target}"
    board = files.text(f"{card.directory}/board_info") or ""
    if files.text(f"{card.directory}/mem_info_vram_vendor") or re.search(r"\b(cem|oam)\b", board):
        return False, "memory of a maker of its own"
    if node is not None and node.has_cores:
        return True, "KFD lists its node with processor cores"
    if gtt is not None and 0 < vram <= 4 * _GIB and gtt >= 8 * _GIB and gtt >= 4 * vram:
        return True, "little memory set aside, and much that it may share"
    return False, "4 GiB and more of its own" if vram > 4 * _GIB and gtt is not None and gtt < vram else None


def _nodes(files: Files) -> list[_Node]:
    found = []
    for number in files.names(_NODES):
        text = files.text(f"{_NODES}/{number}/properties", _PROPERTIES_KEPT) or ""
        values = {words[0]: to_integer(words[1]) for words in map(str.split, text.splitlines()) if len(words) == 2}
        if values.get("simd_count"):
            found.append(
                _Node(
                    render_minor=values.get("drm_render_minor") or -1,
                    device=values.get("device_id") or 0,
                    target=values.get("gfx_target_version") or 0,
                    has_cores=bool(values.get("cpu_cores_count")),
                )
            )
    return found


_PROPERTIES_KEPT = re.compile(
    r"^(?:cpu_cores_count|simd_count|vendor_id|device_id|drm_render_minor|gfx_target_version) .*$", re.MULTILINE
)


def _node_of(files: Files, card: Card, nodes: list[_Node]) -> _Node | None:
    """The card's node: by its render device, else by the PCI device where only one node has it."""
    renders = [name for name in files.names(f"{card.directory}/drm") if name.startswith("renderD")]
    minors = {to_integer(name.removeprefix("renderD")) for name in renders}
    for node in nodes:
        if node.render_minor in minors:
            return node
    same = [node for node in nodes if f"{node.device:04x}" == card.device]
    return same[0] if len(same) == 1 else None
