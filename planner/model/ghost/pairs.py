"""GGUF metadata and tensor infos as bytes, for the few kinds of values that a ghost adds to a header.

Written here and not with the gguf package, which imports numpy and packs a vocabulary value by value.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from planner.model.ggml_types import GGML_TYPES
from planner.model.gguf import TensorInfo

_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_TYPE_NUMBERS = {ggml_type.name: number for number, ggml_type in GGML_TYPES.items()}
_length = struct.Struct("<Q").pack


def text_pair(key: str, value: str) -> bytes:
    """A key with a text."""
    return _pair(key, _STRING, _text(value))


def bool_pair(key: str, value: bool) -> bytes:
    """A key with a truth value."""
    return _pair(key, _BOOL, struct.pack("<?", value))


def number_pair(key: str, value: float) -> bytes:
    """A key with a number: an unsigned 32-bit integer, or a 32-bit float."""
    if isinstance(value, int):
        return _pair(key, _U32, struct.pack("<I", value))
    return _pair(key, _F32, struct.pack("<f", value))


def texts_pair(key: str, values: Sequence[str]) -> bytes:
    """A key with a list of texts."""
    return _pair(key, _ARRAY, struct.pack("<IQ", _STRING, len(values)) + b"".join(map(_text, values)))


def integers_pair(key: str, values: Sequence[int]) -> bytes:
    """A key with a list of signed 32-bit integers."""
    return _pair(key, _ARRAY, struct.pack(f"<IQ{len(values)}i", _I32, len(values), *values))


def floats_pair(key: str, values: Sequence[float]) -> bytes:
    """A key with a list of 32-bit floats."""
    return _pair(key, _ARRAY, struct.pack(f"<IQ{len(values)}f", _F32, len(values), *values))


def tensor_info(tensor: TensorInfo) -> bytes:
    """What a header says of one tensor."""
    dimensions = len(tensor.shape)
    return _text(tensor.name) + struct.pack(
        f"<I{dimensions}QIQ", dimensions, *tensor.shape, _TYPE_NUMBERS[tensor.type.name], tensor.offset
    )


def _pair(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value


def _text(text: str) -> bytes:
    data = text.encode()
    return _length(len(data)) + data
