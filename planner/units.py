"""Bytes and counts as text. Everything inside the program is bytes; only this module turns them into words."""

from __future__ import annotations

import re

from planner.errors import UsageError

KIB = 1024
MIB = 1024**2
GIB = 1024**3


def pad(value: int, multiple: int) -> int:
    """`value` rounded up to a multiple of `multiple`: llama.cpp's GGML_PAD."""
    return -(-value // multiple) * multiple


def format_mib(size_bytes: int) -> str:
    """MiB with two decimals, as llama.cpp prints its buffers: `111.00`."""
    return f"{size_bytes / MIB:,.2f}"


def signed_mib(delta_bytes: int) -> str:
    """A difference with its sign; none where it rounds to nothing."""
    text = format_mib(delta_bytes)
    if not text.strip("-0.,"):
        return "0.00"
    return text if text.startswith("-") else f"+{text}"


def short_bytes(size_bytes: int) -> str:
    """A size in at most four characters: `271M`, `1.2G`, `24G`."""
    for unit, letter in ((MIB, "M"), (GIB, "G"), (1024 * GIB, "T")):
        value = size_bytes / unit
        if value < 9.95 and letter != "M":
            return f"{value:.1f}{letter}"
        if value < 999.5 or letter == "T":
            return f"{value:.0f}{letter}"
    raise AssertionError("unreachable: the largest unit takes everything")


def format_bytes(size_bytes: int) -> str:
    """A size a person reads at a glance: `640 KiB`, `235.2 MiB`, `15.8 GiB`."""
    if abs(size_bytes) < MIB:
        return f"{size_bytes / KIB:.0f} KiB"
    if abs(size_bytes) < GIB:
        return f"{size_bytes / MIB:.1f} MiB"
    return f"{size_bytes / GIB:.1f} GiB"


def format_tokens(count: int) -> str:
    """A context as people write it: `512`, `4k`, `32k`, `10,000`."""
    return f"{count // 1024}k" if count >= 1024 and count % 1024 == 0 else f"{count:,}"


_SUFFIXES = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1024 * GIB}


def parse_size(text: str) -> int:
    """Bytes of a size as people write it: `16G`, `512M`, `24GiB`, `1.5g`. Binary, as memory is sold."""
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise UsageError(f"{text!r} is not a size.", "Write it like 16G or 512M.")
    size = round(float(match[1]) * _SUFFIXES[match[2].upper()])
    if not match[2] and size < MIB:
        raise UsageError(f"{text!r} would be {size} bytes.", f"Did you mean {text.strip()}G?")
    return size
