"""What several tests of the command line look at or look for."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any


def integers(value: Any, key: str = "") -> Iterator[tuple[str, int]]:
    """Every integer of a document with the name that it stands under."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from integers(inner, str(name) if name not in ("host",) else key)
    elif isinstance(value, list):
        for inner in value:
            yield from integers(inner, key)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield key, value


def assert_sizes_are_named(document: Any) -> None:
    """Whatever is as large as a memory size says so in its name."""
    large = {name for name, value in integers(document) if abs(value) > 1_000_000}
    assert {name for name in large if not name.endswith("_bytes")} <= {"parameters", "elements"}
    assert large


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def gguf(*, version: int = 3, architecture: str = "mamba") -> bytes:
    """A file that holds an architecture and no tensor."""
    pair = string("general.architecture") + struct.pack("<I", 8) + string(architecture)
    return b"GGUF" + struct.pack("<IQQ", version, 0, 1) + pair
