"""The page of `planner hardware`: pools as bars, devices as both sides see them, limits and warnings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.cli.render import terminal_width
from planner.hardware import HOST_POOL, Hardware, Holding, Limit, Pool, SeenDevice
from planner.hardware.views import View, joined
from planner.units import format_bytes

_WIDEST = 100
_BAR = 30
_LABEL = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A machine as its system and its engine show it."""

    system_view: Hardware
    report: Mapping[str, Any]
    engine_name: str | None
    engine_devices: Sequence[SeenDevice] | None
    """None where no engine was asked or answered."""
    engine_backends: Sequence[str] = ()
    """Those that show here."""
    engine_problem: str = ""
    """Why not."""

    @property
    def hardware(self) -> Hardware:
        """The machine that plans are made for."""
        if self.engine_devices is None:
            return self.system_view
        return self.system_view.with_accelerators(self.engine_devices)

    @property
    def views(self) -> tuple[View, ...]:
        """Both views of each graphics processor; without an engine, the system's alone."""
        if self.engine_devices is not None:
            return joined(self.system_view, self.engine_devices)
        return tuple(View(graphics=g, seen=None, explanation=g.note) for g in self.system_view.graphics)


def render_page(seen: Seen) -> str:
    """The whole page."""
    machine = seen.system_view
    parts = [_heading(machine), "", f"{'Memory':<{_LABEL + 2}}█ in use  ░ usable now", *_pools(seen)]
    parts += ["", *(_devices(seen) if seen.views else [f"{'Graphics':<{_LABEL + 2}}none found"])]
    parts += ["", *_engine(seen)]
    if machine.limits:
        parts += ["", "What limits it, and what would change that"]
        parts += [line for limit in machine.limits for line in _limit(limit)]
    if machine.warnings:
        parts += ["", "Worth knowing", *(_wrapped(warning, "  ! ", "    ") for warning in machine.warnings)]
    return "\n".join(parts)


def _heading(machine: Hardware) -> str:
    where = ", ".join(text for text in (machine.board, machine.system) if text)
    cores = "" if machine.cpu_cores is None else f", {machine.cpu_cores} threads"
    features = " ".join(word for name, word in _FEATURES.items() if name in machine.cpu_features)
    features = features or next((word for name, word in _OLDER_FEATURES.items() if name in machine.cpu_features), "")
    lines = [
        _wrapped(where or "An unknown machine", "", ""),
        _wrapped(f"{machine.cpu_model or machine.cpu_architecture}{cores}", "", ""),
        _wrapped(f"Computes with {features or 'no vector instructions that are known'}", "", ""),
    ]
    return "\n".join(lines)


_FEATURES = {
    "avx2": "AVX2",
    "fma": "FMA",
    "avx512f": "AVX-512",
    "avx_vnni": "AVX-VNNI",
    "avx512_vnni": "AVX512-VNNI",
    "asimddp": "dot products",
    "i8mm": "i8mm",
    "sve": "SVE",
}
"""What makes llama.cpp faster, by Linux's name and by the one that people know."""
_OLDER_FEATURES = {"avx": "AVX alone", "sse4_2": "SSE4.2 alone", "asimd": "NEON alone"}


# Memory


def _pools(seen: Seen) -> Iterator[str]:
    """The pools that plans draw on, the machine's own first; then the memory of cards that they leave alone."""
    machine = seen.hardware
    named = {view.seen.name if view.seen else view.graphics.device for view in seen.views if view.graphics}
    pools = [machine.host, *(pool for pool in machine.pools if pool.name != HOST_POOL)]
    for pool in pools:
        yield _row("RAM" if pool.name == HOST_POOL else pool.name, pool)
        if pool.label and pool.label != "RAM" and pool.name not in named:
            yield _beside(_capital(pool.label))
        yield from map(_beside, _shares(machine) if pool.name == HOST_POOL else ())
        yield from map(_beside, _pool_sentences(pool))
    taken = {pool.name for pool in pools}
    for view in seen.views:
        card = view.graphics
        if card and view.seen is None and not card.shares_memory and card.pool not in taken:
            yield _row("not used", replace(machine.host, total_bytes=card.total_bytes, usable_bytes=card.usable_bytes))
            yield _beside(card.name)
            yield from map(_beside, _held(card.held))


def _row(label: str, pool: Pool) -> str:
    return f"  {label[:_LABEL]:<{_LABEL}}{_bar(pool)}  {_figures(pool)}"


def _shares(machine: Hardware) -> Iterator[str]:
    """What each may take of the one memory, and swap, which is no part of it."""
    caps = [device for device in machine.devices if device.pool == HOST_POOL and device.cap_bytes is not None]
    if any(device.is_cpu for device in caps):
        parts = [
            f"{'programs' if device.is_cpu else device.name} up to {format_bytes(device.cap_bytes or 0)}"
            for device in reversed(caps)
        ]
        yield f"Of it {' and '.join(parts)}."
    if machine.swap_bytes:
        yield f"Swap of {format_bytes(machine.swap_bytes)} is no part of any plan."


def _figures(pool: Pool) -> str:
    if pool.total_bytes is None or pool.usable_bytes is None:
        return "size unknown" if pool.total_bytes is None else f"{format_bytes(pool.total_bytes)}, free part unknown"
    about = "about " if pool.confidence in ("estimated", "low") else ""
    return f"{about}{format_bytes(pool.usable_bytes)} usable of {format_bytes(pool.total_bytes)}"


def _bar(pool: Pool) -> str:
    """What is taken, what pushes others out, and what is usable now."""
    if not pool.total_bytes or pool.usable_bytes is None:
        return f"[{'?' * _BAR}]"
    usable = min(_BAR, round(_BAR * pool.usable_bytes / pool.total_bytes))
    most = max(pool.pressure_bytes or 0, pool.usable_bytes)
    pressure = max(0, min(_BAR - usable, round(_BAR * most / pool.total_bytes) - usable))
    return f"[{'█' * (_BAR - usable - pressure)}{'▒' * pressure}{'░' * usable}]"


def _pool_sentences(pool: Pool) -> Iterator[str]:
    if pool.pressure_bytes is not None and pool.usable_bytes is not None and pool.pressure_bytes > pool.usable_bytes:
        yield (
            f"Up to {format_bytes(pool.usable_bytes)} runs well; up to {format_bytes(pool.pressure_bytes)} (▒) macOS "
            "compresses other programs; beyond that graphics fail."
        )
    yield from _held(pool.held)
    if pool.name != HOST_POOL and pool.confidence == "read" and pool.total_bytes and pool.usable_bytes is not None:
        unseen = pool.total_bytes - pool.usable_bytes - sum(holding.size_bytes or 0 for holding in pool.held)
        if unseen > _WORTH_TELLING:
            yield f"The driver, and programs that cannot be seen, hold {format_bytes(unseen)}."


_WORTH_TELLING = 1 << 30
"""Less than this a driver keeps for itself on any card, together with what it takes for one program."""


def _held(held: Sequence[Holding]) -> Iterator[str]:
    """Who holds memory: the desktop in one sentence, the largest others by name."""
    desktop = [holding for holding in held if holding.is_desktop]
    others = [holding for holding in held if not holding.is_desktop]
    if desktop:
        names = ", ".join(str(holding.name) for holding in desktop[:3])
        size = sum(holding.size_bytes or 0 for holding in desktop)
        yield f"Your desktop ({names}) holds {format_bytes(size) if size else 'some of it'}."
    for holding in others[:3]:
        size_text = "some of it" if holding.size_bytes is None else format_bytes(holding.size_bytes)
        yield f"{holding.name or 'A program that cannot be named'} holds {size_text}."
    if len(others) > 3:
        yield f"{len(others) - 3} more programs hold {format_bytes(sum(h.size_bytes or 0 for h in others[3:]))}."


# Devices


def _devices(seen: Seen) -> Iterator[str]:
    asked = seen.engine_devices is not None
    yield f"{'Graphics':<{_LABEL + 2}}{'the system says':<26}{'llama-server says' if asked else ''}".rstrip()
    for view in seen.views:
        graphics, listed = view.graphics, view.seen
        device = listed.name if listed else graphics.device if graphics and not asked else None
        label = f"  {(device or '-')[:_LABEL]:<{_LABEL}}"
        yield f"{label}{_system_figures(view):<26}{_engine_figures(view, asked)}".rstrip()
        name = graphics.name if graphics else listed.description if listed else ""
        yield _beside(f"{name} at {graphics.pci}" if graphics and graphics.pci else name)
        if graphics and graphics.shares_memory:
            yield from map(_beside, _held(graphics.held))
        if view.explanation:
            yield _beside(view.explanation)


def _system_figures(view: View) -> str:
    graphics = view.graphics
    if graphics is None:
        return "nothing"
    if graphics.total_bytes is None:
        return "all of the RAM" if graphics.shares_memory else "size unknown"
    if graphics.usable_bytes is None:
        return f"{format_bytes(graphics.total_bytes)}"
    about = "" if graphics.confidence == "read" else "about "
    return f"{about}{format_bytes(graphics.usable_bytes)} of {format_bytes(graphics.total_bytes)}"


def _engine_figures(view: View, asked: bool) -> str:
    if view.seen is None:
        return "not listed" if asked else ""
    return f"{format_bytes(view.seen.free_bytes)} of {format_bytes(view.seen.total_bytes)}"


def _engine(seen: Seen) -> Iterator[str]:
    if seen.engine_devices is None:
        yield _wrapped(seen.engine_problem or "No engine was asked.", f"{'Engine':<{_LABEL + 2}}", " " * (_LABEL + 2))
        if seen.system_view.accelerators:
            yield _beside("The names of devices are those of a usual build: an engine decides what it can use.")
        return
    from planner.engine.find import with_backends  # at the moment of use: a page without an engine needs nothing of it

    count = len(seen.engine_devices)
    devices = "the processor alone" if not count else f"{count} device{'s' if count > 1 else ''} and the processor"
    text = f"{with_backends(seen.engine_name or '', seen.engine_backends)}: {devices}."
    yield _wrapped(text, f"{'Engine':<{_LABEL + 2}}", " " * (_LABEL + 2))


# Text


def _limit(limit: Limit) -> Iterator[str]:
    yield _wrapped(f"{limit.what}{' This is what binds now.' if limit.binds else ''}", "  - ", "    ")
    if limit.setting:
        yield _wrapped(limit.setting, "    > ", "      ")


def _wrapped(text: str, first: str, following: str) -> str:
    return textwrap.fill(
        text,
        width=min(_WIDEST, terminal_width()),
        initial_indent=first,
        subsequent_indent=following,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _beside(text: str) -> str:
    """Text below the figures, behind the column of labels."""
    return _wrapped(text, " " * (_LABEL + 2), " " * (_LABEL + 2))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
