"""Writes GGUF bytes that gguf.GGUFWriter would refuse to: wrong counts, wrong types, lying lengths."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

U8, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 5, 6, 7, 8, 9, 10
_FORMATS = {U8: "<B", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}

Pair = tuple[str, int, Any]
Tensor = tuple[str, tuple[int, ...], int, int]
"""Name, shape, type, offset."""

LLAMA: tuple[Pair, ...] = (
    ("general.architecture", STRING, "llama"),
    ("llama.context_length", U32, 4096),
    ("llama.embedding_length", U32, 64),
    ("llama.block_count", U32, 2),
    ("llama.feed_forward_length", U32, 128),
    ("llama.attention.head_count", U32, 4),
)
"""The least that makes a llama."""


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def scalar(kind: int, value: Any) -> bytes:
    return text(value) if kind == STRING else struct.pack(_FORMATS[kind], value)


def array(kind: int, values: Sequence[Any]) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + b"".join(scalar(kind, value) for value in values)


def pair(key: str, kind: int, value: Any) -> bytes:
    """A key and its value; bytes are taken as they are, and an array is (its kind, its values)."""
    data = value if isinstance(value, bytes) else array(*value) if kind == ARRAY else scalar(kind, value)
    return text(key) + struct.pack("<I", kind) + data


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf(
    pairs: Sequence[Pair] = LLAMA,
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
    metadata_count: int | None = None,
    tensor_count: int | None = None,
) -> bytes:
    """A header, without padding and without data."""
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(pairs) if metadata_count is None else metadata_count,
    )
    body = b"".join(pair(*entry) for entry in pairs) + b"".join(tensor(*entry) for entry in tensors)
    return struct.pack("<4sIQQ", b"GGUF", version, *counts) + body


def complete(pairs: Sequence[Pair], tensors: Sequence[Tensor], data_bytes: int) -> bytes:
    """A header with its data section."""
    header = gguf(pairs, tensors)
    return header + bytes(-len(header) % 32 + data_bytes)
