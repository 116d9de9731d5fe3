"""Reads a GGUF header: metadata and tensor infos, and nothing of the weights.

Vocabularies are walked, not kept, so a file with 262,144 tokens costs tens of milliseconds and little more
memory than its header. Every length in the file is checked against what the file can hold before it is
used; a header that lies ends in a `ModelError` that says where.

Source of the format and of the checks: `ggml/src/gguf.cpp` (`gguf_init_from_reader`).
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from planner.errors import ModelError
from planner.model.ggml_types import GGML_TYPES, GgmlType
from planner.units import pad

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
"""llama.cpp refuses version 1 and anything newer than 3."""
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
"""GGML_MAX_DIMS."""
MAX_NAME_BYTES = 63
"""GGML_MAX_NAME less its terminator; llama.cpp refuses longer tensor names."""
KEPT_ARRAY_LENGTH = 2048
"""Longer arrays are vocabularies: their length is kept, their content is not. No per-layer array comes
near (llama.cpp allows 512 layers)."""

MAX_HEADER_BYTES = 64 << 20
"""Real headers end within 32 MiB; a length that leads past this one is a lie, and costs no memory."""

_STRING = 8
_ARRAY = 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class LongArray:
    """An array whose content was not kept: the tokens, scores, types or merges of a vocabulary."""

    length: int


Scalar = str | int | float | bool
MetadataValue = Scalar | tuple[Scalar, ...] | LongArray


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as the header announces it."""

    name: str
    shape: tuple[int, ...]
    """In ggml's order: the fastest dimension (the row) first."""
    type: GgmlType
    offset: int
    """Bytes from the start of the data section."""
    shard: int = 0
    """Which file of a split model holds it, from 0."""

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of its data: `ggml_nbytes`."""
        return self.elements // self.type.block_elements * self.type.block_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """What a GGUF file says about itself."""

    version: int
    metadata: Mapping[str, MetadataValue]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    """Bytes; of each tensor's offset and of the data section."""
    data_offset: int
    """Bytes from the start of the file to the first tensor's data."""
    pair_spans: Mapping[str, tuple[int, int]] = field(default_factory=dict, repr=False)
    """Where each pair of the metadata begins and ends in the file, key and value together."""
    tensors_span: tuple[int, int] = (0, 0)
    """Where the tensor infos begin and end."""

    @property
    def file_bytes(self) -> int:
        """The smallest size of a file that holds all its tensors."""
        if not self.tensors:
            return self.data_offset
        return self.data_offset + max(tensor.offset + tensor.nbytes for tensor in self.tensors)


def read_header(path: Path) -> GgufHeader:
    """The header of the file at `path`. Raises ModelError with the file's name for anything unreadable."""
    try:
        status = path.stat()
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise ModelError(f"{path} is no regular file.", "Name a .gguf file.")
        with path.open("rb", buffering=0) as file:
            size = status.st_size
            return parse_header(file.read, size, str(path))
    except IsADirectoryError:
        raise ModelError(f"{path} is a folder.", "Name the .gguf file in it.") from None
    except FileNotFoundError:
        raise ModelError(f"There is no file {path}.", "Check the path.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from None


def parse_header(read: Callable[[int], bytes | None], size: int, name: str) -> GgufHeader:
    """The header behind `read`, which yields the file's next bytes; `size` is the whole file's, in bytes."""
    cursor = _Cursor(read, size, name)
    version = _read_version(cursor)
    tensor_count = cursor.u64()
    metadata_count = cursor.u64()
    # A tensor info takes at least 24 bytes, a metadata pair at least 13: larger counts are lies.
    if tensor_count * 24 + metadata_count * 13 > size:
        raise cursor.broken(f"announces {metadata_count} metadata keys and {tensor_count} tensors")
    metadata, spans = _read_metadata(cursor, metadata_count)
    alignment = _alignment(cursor, metadata)
    tensors_start = cursor.position
    tensors = _read_tensors(cursor, tensor_count, alignment)
    return GgufHeader(
        version=version,
        metadata=metadata,
        tensors=tensors,
        alignment=alignment,
        data_offset=pad(cursor.position, alignment),
        pair_spans=spans,
        tensors_span=(tensors_start, cursor.position),
    )


class _Cursor:
    """Walks forward through the file, fetching it chunk by chunk as far as the header reaches."""

    def __init__(self, read: Callable[[int], bytes | None], size: int, name: str) -> None:
        self._read = read
        self._size = size
        self._name = name
        self._data = bytearray()
        self.position = 0

    def broken(self, what: str) -> ModelError:
        """The error for a header that cannot be true."""
        return ModelError(
            f"{self._name} is damaged: its header {what} (near byte {self.position:,} of {self._size:,}).",
            "Download it again.",
        )

    def _cut_off(self, start: int, count: int) -> ModelError:
        return ModelError(
            f"{self._name} is cut off inside its header: at byte {start:,} it needs {count:,} more bytes, "
            f"and the file ends at {self._size:,}.",
            "Download it again.",
        )

    def need(self, count: int) -> int:
        """Make `count` more bytes available and step over them; the offset where they start."""
        start = self.position
        end = start + count
        if end > self._size:
            raise self._cut_off(start, count)
        if end > MAX_HEADER_BYTES:
            raise self.broken(f"does not end within {MAX_HEADER_BYTES:,} bytes: it claims {count:,} for its next value")
        while len(self._data) < end:
            chunk = self._read(max(_CHUNK_BYTES, end - len(self._data)))
            if not chunk:
                raise self.broken("ends before the size that the file system reports")
            self._data += chunk
        self.position = end
        return start

    def u32(self) -> int:
        value: int = _U32.unpack_from(self._data, self.need(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64.unpack_from(self._data, self.need(8))[0]
        return value

    def text(self) -> str:
        length = self.u64()
        start = self.need(length)
        return self._data[start : start + length].decode("utf-8", errors="replace")

    def scalar(self, kind: int) -> Scalar:
        layout = _SCALARS.get(kind)
        if layout is None:
            raise self.broken(f"uses value type {kind}, which GGUF does not have")
        value: Scalar = layout.unpack_from(self._data, self.need(layout.size))[0]
        return value

    def skip_strings(self, count: int) -> None:
        """Step over `count` strings. Vocabularies make this the hot loop: it runs on what is loaded already,
        without a check of its own, since unpacking beyond that raises.
        """
        if count * 8 > self._size - self.position:
            raise self._cut_off(self.position, count * 8)
        unpack = _U64.unpack_from
        strings = iter(range(count))
        while True:
            data, position = self._data, self.position
            try:
                for _ in strings:
                    position += 8 + unpack(data, position)[0]
            except (struct.error, OverflowError):
                # The string at `position` is not loaded yet, or the one before it claims more than there is.
                self.need(position - self.position)
                self.need(self.u64())
            else:
                self.need(position - self.position)
                return


def _read_version(cursor: _Cursor) -> int:
    start = cursor.need(4)
    magic = bytes(cursor._data[start : start + 4])
    if magic != MAGIC:
        raise ModelError(
            f"{cursor._name} is not a GGUF file (it starts with {magic!r}, not {MAGIC!r}).",
            "llama.cpp opens GGUF files only.",
        )
    version = cursor.u32()
    if version & 0xFFFF == 0 and version:
        raise ModelError(f"{cursor._name} was written for big-endian machines; llama.cpp cannot open it here.")
    if version not in SUPPORTED_VERSIONS:
        age = "newer" if version > max(SUPPORTED_VERSIONS) else "older"
        raise ModelError(
            f"{cursor._name} is GGUF version {version}, {age} than the versions that llama.cpp reads "
            f"({' and '.join(map(str, SUPPORTED_VERSIONS))}).",
            "Update this program." if age == "newer" else "Convert it with a current llama.cpp.",
        )
    return version


def _read_metadata(cursor: _Cursor, count: int) -> tuple[dict[str, MetadataValue], dict[str, tuple[int, int]]]:
    metadata: dict[str, MetadataValue] = {}
    spans: dict[str, tuple[int, int]] = {}
    for _ in range(count):
        start = cursor.position
        key = cursor.text()
        if key in metadata:
            raise cursor.broken(f"has the key {key!r} twice")
        metadata[key] = _read_value(cursor, cursor.u32())
        spans[key] = (start, cursor.position)
    return metadata, spans


def _read_value(cursor: _Cursor, kind: int) -> MetadataValue:
    if kind == _STRING:
        return cursor.text()
    if kind == _ARRAY:
        return _read_array(cursor, cursor.u32(), cursor.u64())
    return cursor.scalar(kind)


def _read_array(cursor: _Cursor, kind: int, length: int) -> MetadataValue:
    if kind == _STRING:
        if length > KEPT_ARRAY_LENGTH:
            cursor.skip_strings(length)
            return LongArray(length)
        return tuple(cursor.text() for _ in range(length))
    layout = _SCALARS.get(kind)
    if layout is None:
        raise cursor.broken(f"has an array of value type {kind}, which GGUF does not have")
    if length > KEPT_ARRAY_LENGTH:
        cursor.need(length * layout.size)
        return LongArray(length)
    return tuple(cursor.scalar(kind) for _ in range(length))


def _alignment(cursor: _Cursor, metadata: Mapping[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise cursor.broken(f"asks for an alignment of {alignment!r}, which is no power of two")
    return alignment


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> tuple[TensorInfo, ...]:
    tensors: list[TensorInfo] = []
    names: set[str] = set()
    for _ in range(count):
        tensor = _read_tensor(cursor, alignment)
        if tensor.name in names:
            raise cursor.broken(f"has the tensor {tensor.name!r} twice")
        names.add(tensor.name)
        tensors.append(tensor)
    return tuple(tensors)


def _read_tensor(cursor: _Cursor, alignment: int) -> TensorInfo:
    name = cursor.text()
    if len(name.encode()) > MAX_NAME_BYTES:
        raise cursor.broken(f"has a tensor name of {len(name)} characters")
    dimensions = cursor.u32()
    if dimensions > MAX_DIMENSIONS:
        raise cursor.broken(f"gives the tensor {name!r} {dimensions} dimensions")
    shape = tuple(cursor.u64() for _ in range(dimensions))
    number = cursor.u32()
    ggml_type = GGML_TYPES.get(number)
    if ggml_type is None:
        raise ModelError(
            f"{cursor._name} stores {name!r} in tensor type {number}, which this program does not know.",
            "Update this program.",
        )
    if shape and shape[0] % ggml_type.block_elements:
        raise cursor.broken(
            f"gives {name!r} rows of {shape[0]}, not whole {ggml_type.name} blocks of {ggml_type.block_elements}"
        )
    offset = cursor.u64()
    if offset % alignment:
        raise cursor.broken(f"puts {name!r} at {offset:,}, off the alignment of {alignment}")
    return TensorInfo(name, shape, ggml_type, offset)
