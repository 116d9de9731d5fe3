"""Common cards and boxes by name, for plans of a machine that is not here: memory and speed as makers state them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.errors import UsageError
from planner.hardware.assemble import METAL_RESERVE_BYTES
from planner.hardware.hardware import Hardware
from planner.hardware.values import CPU_DEVICE, HOST_POOL, Device, Pool
from planner.units import GIB, MIB

_CARDS = """
    CUDA   rtx 2060:6:336 rtx 3050:8:224 rtx 3060:12:360 rtx 3060 ti:8:448 rtx 3070:8:448 rtx 3070 ti:8:608
    CUDA   rtx 3080:10:760 rtx 3080 ti:12:912 rtx 3090:24:936 rtx 3090 ti:24:1008 rtx 4060:8:272 rtx 4060 ti:16:288
    CUDA   rtx 4070:12:504 rtx 4070 super:12:504 rtx 4070 ti:12:504 rtx 4070 ti super:16:672 rtx 4080:16:717
    CUDA   rtx 4090:24:1008 rtx 5060:8:448 rtx 5060 ti:16:448 rtx 5070:12:672 rtx 5070 ti:16:896 rtx 5080:16:960
    CUDA   rtx 5090:32:1792 gtx 1080 ti:11:484 tesla p40:24:347 rtx a2000:12:288 rtx a4000:16:448 rtx a6000:48:768
    Vulkan rx 6600:8:224 rx 6700 xt:12:384 rx 6800:16:512 rx 6800 xt:16:512 rx 6900 xt:16:512 rx 7600:8:288
    Vulkan rx 7600 xt:16:288 rx 7700 xt:12:432 rx 7800 xt:16:624 rx 7900 xt:20:800 rx 7900 xtx:24:960
    Vulkan rx 9060 xt:16:320 rx 9070:16:640 rx 9070 xt:16:640 arc a380:6:186 arc a770:16:560 arc b570:10:380
    Vulkan arc b580:12:456
"""
"""Back end of a usual build, then name:GiB:GB/s each."""

_BOXES = """
    n95:16:38:none:avx2 n97:16:38:none:avx2 n100:16:38:none:avx2 n150:16:38:none:avx2 n305:32:38:none:avx2
    n5105:16:47:none:sse n6005:16:47:none:sse j4125:8:38:none:sse j4105:8:38:none:sse j3455:8:30:none:sse
    ryzen 780m:32:90:Vulkan:avx512 strix halo:128:256:Vulkan:avx512 ryzen ai max 395:128:256:Vulkan:avx512
    framework desktop:128:256:Vulkan:avx512 dgx spark:128:273:CUDA:sve gb10:128:273:CUDA:sve
    jetson orin nano:8:102:CUDA:arm jetson orin nx:16:102:CUDA:arm jetson agx orin:64:205:CUDA:arm
    raspberry pi 4:8:13:none:arm0 raspberry pi 5:8:17:none:arm
    mac mini:16:120:MTL:m2 mac mini m1:16:68:MTL:m1 mac mini m2:16:100:MTL:m2 mac mini m2 pro:32:200:MTL:m2
    mac mini m4:16:120:MTL:m2 mac mini m4 pro:48:273:MTL:m2 macbook air:16:120:MTL:m2 macbook air m1:16:68:MTL:m1
    m1 max:64:400:MTL:m1 m2 max:64:400:MTL:m2 m3 max:64:400:MTL:m2 m4 max:64:546:MTL:m2 m1 ultra:64:800:MTL:m1
    m2 ultra:128:800:MTL:m2 m3 ultra:256:819:MTL:m2 mac studio:64:546:MTL:m2
"""
"""name:GiB that are usual:GB/s:back end of its graphics:instruction sets."""

_FEATURES: Mapping[str, tuple[str, frozenset[str]]] = {
    "sse": ("x86_64", frozenset({"ssse3", "sse4_1", "sse4_2"})),
    "avx2": ("x86_64", frozenset({"avx", "avx2", "f16c", "fma", "bmi2", "avx_vnni"})),
    "avx512": ("x86_64", frozenset({"avx", "avx2", "f16c", "fma", "bmi2", "avx512f", "avx512_vnni"})),
    "arm0": ("aarch64", frozenset({"asimd"})),
    "arm": ("aarch64", frozenset({"asimd", "asimdhp", "asimddp"})),
    "sve": ("aarch64", frozenset({"asimd", "asimdhp", "asimddp", "i8mm", "sve", "sve2", "bf16"})),
    "m1": ("aarch64", frozenset({"asimdhp", "asimddp"})),
    "m2": ("aarch64", frozenset({"asimdhp", "asimddp", "i8mm", "bf16"})),
}
CARD_RESERVE_BYTES = 512 * MIB
"""What a card's own driver keeps, about: 459 MiB of an RTX 4090."""


@dataclass(frozen=True, slots=True)
class _Known:
    name: str
    memory_bytes: int
    bandwidth_gb_per_s: float
    back_end: str
    """Of its graphics, as llama.cpp's devices are named; `none` where plans leave them alone."""
    features: str = ""
    """Key of the instruction sets; empty for a card."""

    @property
    def is_card(self) -> bool:
        return not self.features


def named_machine(text: str, here: Hardware, ram_bytes: int | None = None) -> Hardware:
    """The machine that a person names: `rtx 3060`, `n100`, `mac mini 16`, `2x rtx 3090`, `rtx 4090, rtx 3060`.

    A number behind a name is its memory in GiB. Cards stand in a machine like `here` with `ram_bytes` of free
    memory, by default as much as `here` has.
    """
    parts = [part for part in (part.strip() for part in text.split(",")) if part]
    found = [known for part in parts for known in _find(part)]
    if not found:
        raise UsageError("--machine needs a name.", "As in --machine 'rtx 3060' or --machine 'mac mini 16'.")
    boxes = [known for known in found if not known.is_card]
    if not boxes:
        return _with_cards(found, here, here.memory.usable_bytes or 0 if ram_bytes is None else ram_bytes)
    if len(found) > 1:
        raise UsageError(f"{boxes[0].name} is a whole machine, so that it is named alone.", "Cards can be several.")
    if ram_bytes is not None:
        raise UsageError(f"{boxes[0].name} has its own memory.", f"Write it behind the name: '{boxes[0].name} 32'.")
    return _box(boxes[0])


def _find(part: str) -> list[_Known]:
    words = re.sub(r"\b(nvidia|geforce|amd|radeon|intel|apple|gb|gib|g)\b", " ", part.lower())
    words = re.sub(r"(\d)\s*(gb|gib|g)\b", r"\1", words)
    match = re.fullmatch(r"\s*(?:(\d)\s*x\s+)?(.*?)\s*", words, re.DOTALL)
    count, name = int(match[1] or 1) if match else 1, " ".join((match[2] if match else "").split())
    table = _table()
    if name in table:
        return [table[name]] * count
    name, _, size = name.rpartition(" ")
    if name in table and size.isdecimal() and 0 < int(size) <= 2048:
        return [replace(table[name], name=f"{name} {size}", memory_bytes=int(size) * GIB)] * count
    raise UsageError(f"{part!r} is no machine known here{_suggestion(f'{name} {size}', table)}.", _WAY_OUT)


_WAY_OUT = "Describe it with --ram, --vram and --unified instead."


def _suggestion(name: str, table: Mapping[str, _Known]) -> str:
    import difflib

    near = difflib.get_close_matches(name.strip(), table, n=3, cutoff=0.5)
    return f" (near: {', '.join(near)})" if near else ""


def known_names() -> tuple[str, ...]:
    """Every name of the table."""
    return tuple(_table())


def _table() -> dict[str, _Known]:
    table = {}
    for line in _CARDS.strip().splitlines():
        back_end, _, entries = line.strip().partition(" ")
        for name, size, speed in re.findall(r"(\S[^:]*):(\d+):(\d+)", entries):
            table[name] = _Known(name, int(size) * GIB, float(speed), back_end)
    for name, size, speed, back_end, features in re.findall(r"(\S[^:]*):(\d+):(\d+):(\w+):(\w+)", _BOXES):
        table[name] = _Known(name, int(size) * GIB, float(speed), back_end, features)
    return table


def _with_cards(cards: Sequence[_Known], here: Hardware, ram_bytes: int) -> Hardware:
    if ram_bytes <= 0:
        raise UsageError("A card needs a machine around it.", "Say how much RAM is free there, as in --ram 16G.")
    counts: dict[str, int] = {}
    pools, devices = [], []
    for card in cards:
        name = f"{card.back_end}{counts.setdefault(card.back_end, 0)}"
        counts[card.back_end] += 1
        pools.append(_pool(name, card, card.memory_bytes - CARD_RESERVE_BYTES, "512 MiB taken off for its driver"))
        devices.append(Device(name=name, pool=name))
    host = Pool(
        name=HOST_POOL,
        total_bytes=ram_bytes,
        usable_bytes=ram_bytes,
        source="simulated",
        label="RAM",
        confidence="simulated",
    )
    return Hardware(
        pools=(*pools, host),
        devices=(*devices, Device(name=CPU_DEVICE, pool=HOST_POOL)),
        cpu_model=here.cpu_model,
        cpu_architecture=here.cpu_architecture,
        cpu_features=here.cpu_features,
        cpu_cores=here.cpu_cores,
    )


def _box(box: _Known) -> Hardware:
    architecture, features = _FEATURES[box.features]
    system = min(4 * GIB, max(GIB, box.memory_bytes // 8))
    pool = _pool(HOST_POOL, box, box.memory_bytes - system, f"{system // GIB} GiB taken off for the system")
    devices = [Device(name=CPU_DEVICE, pool=HOST_POOL)]
    if box.back_end == "MTL":
        from probes.apple import working_set_rule

        cap = max(0, working_set_rule(box.memory_bytes) - METAL_RESERVE_BYTES)
        devices.insert(0, Device(name="MTL0", pool=HOST_POOL, cap_bytes=cap))
    elif box.back_end != "none":
        devices.insert(0, Device(name=f"{box.back_end}0", pool=HOST_POOL))
    return Hardware(
        pools=(replace(pool, label="one memory for programs and graphics" if len(devices) > 1 else "RAM"),),
        devices=tuple(devices),
        board=box.name,
        cpu_architecture=architecture,
        cpu_features=features,
    )


def _pool(name: str, known: _Known, usable: int, how: str) -> Pool:
    return Pool(
        name=name,
        total_bytes=known.memory_bytes,
        usable_bytes=usable,
        source=f"table of machines: {known.name}, {how}",
        label=known.name,
        confidence="simulated",
        bandwidth_gb_per_s=known.bandwidth_gb_per_s,
    )
