"""Intel's graphics on Linux, by the files of the drivers xe and i915. Made from public samples; none was seen.

How much of a card's memory is in use no file tells without privileges, so that it is the sum of what the processes
that can be seen hold. Graphics without memory of their own use the machine's.
"""

from __future__ import annotations

import re
from pathlib import Path

from probes.drm import Card, Client, cards, driver_version, drm_clients, holders_of
from probes.gpu import Gpu
from probes.machine import Files, Where


def probe_intel(root: Where = Path("/")) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Intel's graphics, and the warnings. Never raises."""
    files = Files(root)
    try:
        found = [card for card in cards(files) if card.vendor == "8086" and card.driver in ("xe", "i915", "")]
        clients = drm_clients(files, found)
        return tuple(_gpu(files, card, clients) for card in found), tuple(files.warnings)
    except Exception as error:  # a probe never raises, whatever the files hold
        return (), (*files.warnings, f"Intel graphics: {error!r}")


def _gpu(files: Files, card: Card, clients: list[Client]) -> Gpu:
    total, source = _own_memory(files, card)
    name = card.name
    if total is None:
        return Gpu(
            vendor="intel",
            name=name,
            pci=card.pci,
            shares_memory=True,
            driver=driver_version(files, card.driver),
            holders=holders_of(clients, card, shared=True),
            sources=("shares_memory: neither tiles with memory (xe) nor lmem_total_bytes (i915)",),
        )
    holders = holders_of(clients, card, shared=False)
    seen = sum(holder.size_bytes or 0 for holder in holders)
    return Gpu(
        vendor="intel",
        name=name,
        pci=card.pci,
        total_bytes=total,
        free_bytes=max(0, total - seen),
        confidence="low",
        driver=driver_version(files, card.driver),
        holders=holders,
        sources=(f"total_bytes: {source}", f"free_bytes: total - {seen} that processes seen here hold (fdinfo)"),
        warnings=(f"{name}: what other users' programs hold of it cannot be seen, so less may be free.",),
    )


def _own_memory(files: Files, card: Card) -> tuple[int | None, str]:
    tiles = [name for name in files.names(card.directory) if re.fullmatch(r"tile\d+", name)]
    sizes = [files.size(f"{card.directory}/{tile}/physical_vram_size_bytes") for tile in tiles]
    total = sum(size for size in sizes if size is not None)
    if total:
        return total, f"{card.directory}/tile*/physical_vram_size_bytes"
    path = f"{card.directory.removesuffix('/device')}/lmem_total_bytes"
    return files.size(path) or None, path
