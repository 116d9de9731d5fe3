"""Small models to try llama.cpp with: the reference headers as ghosts, as they are or grown.

The reference headers have two layers, F32 weights and no block that predicts ahead. `grow` makes of one a
model with many layers, quantised matrices, shards and such a block; every file is a header and a hole.
"""

from __future__ import annotations

import csv
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

_BLOCK = re.compile(r"^blk\.(\d+)\.(.*)")
_MATRIX = re.compile(r"(^(token_embd|output)|attn_(q|k|v|qkv|output|k_b|v_b)|ffn_\w*|ssm_(in|out))\.weight$")
_ALIGNMENT = 32


class _Pair(NamedTuple):
    """A key of the metadata with its value, and the types of both its value and an array's entries."""

    key: str
    value: Any
    kind: GGUFValueType
    entries: GGUFValueType | None = None


class _Tensor(NamedTuple):
    name: str
    shape: list[int]
    """The length of a row first."""


def ghost(shared: Path, name: str, folder: Path) -> Path:
    """The reference header `name` (`llama-dense`) as a file that llama.cpp opens."""
    headers = shared / "archs"
    target = folder / f"{name}.gguf"
    with (headers / "index.csv").open(newline="") as file:
        size = next(int(row["file_bytes"]) for row in csv.DictReader(file) if row["file"] == target.name)
    shutil.copyfile(headers / target.name, target)
    os.truncate(target, size)
    return target


def grow(
    source: Path,
    target: Path,
    *,
    layers: int,
    matrices: Mapping[str, str] | None = None,
    tied: bool = False,
    ahead: bool = False,
    shards: int = 1,
) -> Path:
    """A ghost like `source` with so many layers, its own two taking turns. Returns its first file.

    `matrices` maps patterns to the types of the matrices they are found in. `tied` leaves the output matrix
    out. `ahead` makes the last layer a block that predicts ahead (MTP). `shards` splits the file.
    """
    reader = GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    changed = {f"{architecture}.block_count": layers, f"{architecture}.nextn_predict_layers": int(ahead)}
    pairs = list(_pairs(reader, changed, layers))
    # One dense layer leads some mixtures of experts; elsewhere the two layers take turns.
    leads = reader.fields[f"{architecture}.leading_dense_block_count"].contents() == 1
    own = [_Tensor(tensor.name, [int(size) for size in tensor.shape]) for tensor in reader.tensors]
    tensors = list(_tensors(own, layers, tied=tied, ahead=ahead, leads=leads))
    if shards == 1:
        _write(target, architecture, pairs, tensors, matrices or {})
        return target
    size = math.ceil(len(tensors) / shards)
    files = [target.with_name(f"{target.stem}-{number + 1:05d}-of-{shards:05d}.gguf") for number in range(shards)]
    for number, file in enumerate(files):
        split = [
            _Pair("split.no", number, GGUFValueType.UINT16),
            _Pair("split.count", shards, GGUFValueType.UINT16),
            _Pair("split.tensors.count", len(tensors), GGUFValueType.INT32),
        ]
        part = tensors[number * size : (number + 1) * size]
        _write(file, architecture, split if number else [*pairs, *split], part, matrices or {})
    return files[0]


def _pairs(reader: GGUFReader, changed: Mapping[str, int], layers: int) -> Iterator[_Pair]:
    for field in reader.fields.values():
        value = changed.get(field.name, field.contents())
        if field.name.startswith("GGUF.") or field.name == "general.architecture" or value == []:
            continue
        if field.types[0] is GGUFValueType.ARRAY:
            per_layer = len(value) == 2
            values = [value[layer % 2] for layer in range(layers)] if per_layer else value
            yield _Pair(field.name, values, field.types[0], field.types[1])
        else:
            yield _Pair(field.name, value, field.types[0])


def _tensors(own: Sequence[_Tensor], layers: int, *, tied: bool, ahead: bool, leads: bool) -> Iterator[_Tensor]:
    for tensor in own:
        if not tensor.name.startswith("blk.") and not (tied and tensor.name == "output.weight"):
            yield tensor
    for layer in range(layers):
        like = min(layer, 1) if leads else layer % 2
        skipped = ahead and layer == layers - 1
        for tensor in own:
            match = _BLOCK.match(tensor.name)
            # Of a block that it skips, llama.cpp misses the scales that it never asks for.
            if match and int(match[1]) == like and not (skipped and match[2].endswith("scale")):
                yield _Tensor(f"blk.{layer}.{match[2]}", tensor.shape)
    if ahead:
        width = next(tensor.shape[0] for tensor in own if tensor.name == "token_embd.weight")
        for name, shape in (("eh_proj", [2 * width, width]), ("enorm", [width]), ("hnorm", [width])):
            yield _Tensor(f"blk.{layers - 1}.nextn.{name}.weight", shape)


def _write(
    path: Path, architecture: str, pairs: Sequence[_Pair], tensors: Sequence[_Tensor], matrices: Mapping[str, str]
) -> None:
    writer = GGUFWriter(path, architecture)
    for pair in pairs:
        writer.add_key_value(pair.key, pair.value, pair.kind, sub_type=pair.entries)
    data_bytes = 0
    for tensor in tensors:
        kind = _type(tensor, matrices)
        block, size = GGML_QUANT_SIZES[kind]
        nbytes = math.prod(tensor.shape) // block * size
        shape = tensor.shape[::-1]
        writer.add_tensor_info(tensor.name, shape, numpy.dtype(numpy.float32), nbytes, raw_dtype=kind)
        data_bytes += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, -(-path.stat().st_size // _ALIGNMENT) * _ALIGNMENT + data_bytes)


def _type(tensor: _Tensor, matrices: Mapping[str, str]) -> GGMLQuantizationType:
    found = next((kind for pattern, kind in matrices.items() if re.search(pattern, tensor.name)), None)
    if found and len(tensor.shape) > 1 and _MATRIX.search(tensor.name):
        kind = GGMLQuantizationType[found]
        if tensor.shape[0] % GGML_QUANT_SIZES[kind][0] == 0:
            return kind
    return GGMLQuantizationType.F32
