"""What Linux's graphics drivers tell in files: which cards there are, and what each process holds of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from probes.accelerator import DRM
from probes.gpu import Holder, merged_holders
from probes.machine import Files, Machine
from probes.programs import is_desktop
from probes.report import Json

_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_TELLING_DRIVERS = ("amdgpu", "xe", "i915")
"""Drivers whose fdinfo names memory."""
_PCI_IDS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids")

_MAKERS = {"1002": "AMD", "8086": "Intel"}
_NAMES = {
    "1002:744c": "Radeon RX 7900 XT/7900 XTX",
    "1002:747e": "Radeon RX 7700/7800 XT",
    "1002:7480": "Radeon RX 7600",
    "1002:7550": "Radeon RX 9070",
    "1002:73bf": "Radeon RX 6800/6900 XT",
    "1002:1586": "Radeon 8060S (Strix Halo)",
    "1002:150e": "Radeon 880M/890M (Strix)",
    "1002:15bf": "Radeon 780M (Phoenix)",
    "1002:1900": "Radeon 780M (Hawk Point)",
    "1002:1681": "Radeon 680M (Rembrandt)",
    "1002:1638": "Radeon Vega (Cezanne)",
    "8086:e20b": "Arc B580",
    "8086:e20c": "Arc B570",
    "8086:56a0": "Arc A770",
    "8086:56a1": "Arc A750",
    "8086:4e61": "UHD Graphics (Jasper Lake)",
    "8086:46d0": "UHD Graphics (Alder Lake-N)",
    "8086:46d1": "UHD Graphics (Alder Lake-N)",
    "8086:46d2": "UHD Graphics (Alder Lake-N)",
    "8086:3e92": "UHD Graphics 630",
    "8086:3e98": "UHD Graphics 630",
    "8086:a780": "UHD Graphics 770",
    "8086:4680": "UHD Graphics 770",
}
"""Common devices, for where the system has no list of them (containers)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One graphics card as the kernel lists it."""

    directory: str
    """Its folder: /sys/class/drm/card0/device."""
    pci: str | None
    vendor: str
    """Four hexadecimal digits: 10de, 1002, 8086."""
    device: str
    driver: str
    """amdgpu, xe, i915, nvidia; empty when none is bound."""
    name: str = ""
    """What it is called; empty for makers that tell by a library of their own."""


def cards(files: Files) -> list[Card]:
    """The cards with a PCI vendor, by where they sit."""
    found = []
    for name in files.names(DRM):
        if re.fullmatch(r"card\d+", name):
            directory = f"{DRM}/{name}/device"
            vendor = _hex(files.text(f"{directory}/vendor"))
            if vendor is None:
                continue  # a display without PCI, as on small boards and in virtual machines
            pci = files.target(directory)
            found.append(
                Card(
                    directory=directory,
                    pci=pci if pci and _PCI.fullmatch(pci) else None,
                    vendor=vendor,
                    device=_hex(files.text(f"{directory}/device")) or "0000",
                    driver=files.target(f"{directory}/driver") or "",
                )
            )
    return _named(files, sorted(found, key=lambda card: card.pci or card.directory))


def _hex(text: str | None) -> str | None:
    match = re.fullmatch(r"0x([0-9a-f]{1,4})", (text or "").strip().lower())
    return match[1].zfill(4) if match else None


def _named(files: Files, found: list[Card]) -> list[Card]:
    """The cards with their names: by the system's list of PCI devices, else by ours, else by their numbers."""
    asked = [card for card in found if card.vendor in _MAKERS]
    if not asked:
        return found
    vendors, devices = ("|".join(sorted(names)) for names in ({c.vendor for c in asked}, {c.device for c in asked}))
    kept = re.compile(rf"^(?:(?:{vendors})|\t(?:{devices}))  .*$", re.MULTILINE)
    listed = next((text for path in _PCI_IDS if (text := files.text(path, kept))), "")
    return [replace(card, name=_name(listed, card)) if card in asked else card for card in found]


def _name(listed: str, card: Card) -> str:
    maker, vendor = _MAKERS[card.vendor], ""
    for line in listed.splitlines():
        if not line.startswith("\t"):
            vendor = line[:4]
        elif vendor == card.vendor and line[1:5] == card.device:
            # What makers call a product stands in brackets.
            product = re.search(r"\[([^\]]+)\]\s*$", line)
            return f"{maker} {product[1] if product else line[7:].strip()}"
    known = _NAMES.get(f"{card.vendor}:{card.device}")
    return f"{maker} {known}" if known else f"{maker} graphics {card.vendor}:{card.device}"


def driver_version(files: Files, driver: str) -> str | None:
    """A driver's name with its version: its own, where it came from its maker, else the kernel's; None if unknown."""
    own = (files.text(f"/sys/module/{driver}/version") or "").strip()
    kernel = (files.text("/proc/sys/kernel/osrelease") or "").strip()
    if not driver or not (own or kernel):
        return None
    return f"{driver} {own}" if own else f"{driver} of Linux {kernel}"


# What processes hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One process's memory on one card."""

    process: str | None
    driver: str
    pci: str
    regions: dict[str, int]
    """Bytes per region: vram, gtt, system, local, ..."""

    @property
    def device_bytes(self) -> int:
        """What lies in the card's own memory."""
        return sum(size for region, size in self.regions.items() if region in ("vram", "local"))

    @property
    def total_bytes(self) -> int:
        """All of it; on graphics that share the machine's memory this is what counts."""
        return sum(size for region, size in self.regions.items() if region != "cpu")


def drm_clients(files: Files, found: list[Card]) -> list[Client]:
    """What every process that can be seen holds on the cards. Nothing is looked at where no driver would tell."""
    if not any(card.driver in _TELLING_DRIVERS for card in found):
        return []
    answer = files.answer("drm clients", lambda: list(_read_clients(files.machine)))
    clients = []
    for entry in answer if isinstance(answer, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("regions"), dict):
            sizes = {name: size for name, size in entry["regions"].items() if isinstance(size, int) and size >= 0}
            regions = {str(name).removesuffix("_bytes"): size for name, size in sizes.items()}
            process = entry.get("process")
            clients.append(
                Client(
                    process=process if isinstance(process, str) else None,
                    driver=str(entry.get("driver", "")),
                    pci=str(entry.get("pci", "")),
                    regions=regions,
                )
            )
    return clients


def holders_of(clients: list[Client], card: Card, *, shared: bool) -> tuple[Holder, ...]:
    """Who holds the card's memory; with `shared`, also what lies in the machine's."""
    found = []
    for client in clients:
        size = client.total_bytes if shared else client.device_bytes
        if client.pci == card.pci and size > 0:
            desktop = client.process is not None and is_desktop(client.process)
            found.append(Holder(name=client.process, size_bytes=size, is_desktop=desktop))
    return merged_holders(found)


def _read_clients(machine: Machine) -> Iterator[Json]:
    seen: set[tuple[str, str]] = set()
    for process in machine.path("/proc").iterdir():
        if process.name.isdecimal():
            yield from read_fdinfo(process, seen)


def read_fdinfo(process: Path, seen: set[tuple[str, str]]) -> Iterator[Json]:
    """The graphics memory of one process, from the folder /proc/PID; `seen` keeps a client from counting twice."""
    try:
        descriptors = [fd.name for fd in (process / "fd").iterdir() if str(fd.readlink()).startswith("/dev/dri/")]
    except OSError:  # another user's, or gone
        return
    for number in descriptors:
        try:
            text = (process / "fdinfo" / number).read_text(encoding="utf-8", errors="replace")
            name = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue
        fields = dict(re.findall(r"^(drm-(?:driver|pdev|client-id)):\s+(\S+)", text, re.MULTILINE))
        client = (fields.get("drm-pdev", ""), fields.get("drm-client-id", ""))
        regions = fdinfo_regions(text)
        if regions and client not in seen:
            seen.add(client)
            yield {
                "process": name or None,
                "driver": fields.get("drm-driver", ""),
                "pci": client[0],
                "regions": {f"{region}_bytes": size for region, size in regions.items()},
            }


_REGION = re.compile(
    r"^drm-(resident|total|memory)-(vram|local|system|gtt|stolen|cpu)(\d*):\s+(\d{1,18})(?: (KiB|MiB))?[ \t]*$",
    re.MULTILINE,
)
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
_PREFERENCE = ("resident", "memory", "total")


def fdinfo_regions(text: str) -> dict[str, int]:
    """Bytes per region of one fdinfo, its numbered instances added up: what is resident, else the older words."""
    found: dict[str, dict[str, int]] = {}
    for word, region, _instance, number, unit in _REGION.findall(text):
        words = found.setdefault(region, {})
        words[word] = words.get(word, 0) + int(number) * _UNITS[unit]
    return {
        region: next(words[word] for word in _PREFERENCE if word in words) for region, words in sorted(found.items())
    }
