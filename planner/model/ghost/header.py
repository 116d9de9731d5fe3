"""`GhostHeader`: a GGUF header as bytes, key by key, so that what is kept stays as it was to the byte."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from planner.errors import ModelError
from planner.model.gguf import DEFAULT_ALIGNMENT, MAGIC, GgufHeader, TensorInfo
from planner.model.ghost.pairs import bool_pair, tensor_info, text_pair
from planner.model.marks import GHOST_KEY
from planner.units import pad

_LENGTH_BYTES = 8
"""What stands before every text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GhostHeader:
    """The header of one file, ready to be written."""

    version: int = 3
    pairs: Mapping[str, bytes]
    """Key, type and value of every pair, in file order."""
    tensor_count: int
    tensor_infos: bytes
    alignment: int = DEFAULT_ALIGNMENT
    data_bytes: int
    """What the tensors take behind the header: the size of the hole."""

    @classmethod
    def of_tensors(cls, tensors: tuple[TensorInfo, ...]) -> GhostHeader:
        """A header with these tensors and no metadata yet."""
        return cls(
            pairs={},
            tensor_count=len(tensors),
            tensor_infos=b"".join(map(tensor_info, tensors)),
            data_bytes=pad(tensors[-1].offset + tensors[-1].nbytes, DEFAULT_ALIGNMENT),
        )

    @classmethod
    def of_file(cls, path: Path, header: GgufHeader, *, keep: Callable[[str], bool]) -> GhostHeader:
        """The header of a file, with the pairs whose key is to be kept; `header` is what was read of it.

        Raises OSError where the file is no longer there, and ModelError where it is another one by now.
        """
        with path.open("rb") as file:

            def read(span: tuple[int, int]) -> bytes:
                file.seek(span[0])
                return file.read(span[1] - span[0])

            pairs = {key: read(span) for key, span in header.pair_spans.items() if keep(key)}
            if not all(data.startswith(key.encode(), _LENGTH_BYTES) for key, data in pairs.items()):
                raise ModelError(f"{path} has changed since its header was read.", "Open it again.")
            return cls(
                version=header.version,
                pairs=pairs,
                tensor_count=len(header.tensors),
                tensor_infos=read(header.tensors_span),
                alignment=header.alignment,
                data_bytes=pad(header.file_bytes - header.data_offset, header.alignment),
            )

    def with_pairs(self, pairs: Mapping[str, bytes]) -> GhostHeader:
        """The header with these pairs, in place of those of the same keys."""
        return replace(self, pairs={**self.pairs, **pairs})

    def marked(self, name: str) -> GhostHeader:
        """The header with what tells a ghost from a model: its name and its key."""
        return self.with_pairs(
            {
                "general.name": text_pair("general.name", f"{name} (ghost: no weights)"),
                GHOST_KEY: bool_pair(GHOST_KEY, True),
            }
        )

    def encode(self) -> bytes:
        """The file up to where its data begin."""
        counts = struct.pack("<IQQ", self.version, self.tensor_count, len(self.pairs))
        header = b"".join((MAGIC, counts, *self.pairs.values(), self.tensor_infos))
        return header + bytes(pad(len(header), self.alignment) - len(header))
