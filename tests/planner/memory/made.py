"""Models that exist only as metadata: no file is needed to predict them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner import Model
from planner.model.ggml_types import type_named
from planner.model.gguf import GgufHeader, TensorInfo


def model(metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]] | None = None) -> Model:
    """A model with these metadata, and F32 tensors of these shapes, one behind the other."""
    infos: list[TensorInfo] = []
    offset = 0
    for name, shape in (tensors or {}).items():
        infos.append(TensorInfo(name, shape, type_named("f32"), offset))
        offset += infos[-1].nbytes
    header = GgufHeader(version=3, metadata=metadata, tensors=tuple(infos), alignment=32, data_offset=0)
    return Model(path=Path("made.gguf"), header=header)


def llama(**changes: Any) -> Model:
    """A small llama with `changes` (`__` stands for a dot)."""
    values: dict[str, Any] = {
        "context_length": 4096,
        "embedding_length": 512,
        "block_count": 4,
        "feed_forward_length": 1024,
        "vocab_size": 1000,
        "attention.head_count": 8,
    } | {name.replace("__", "."): value for name, value in changes.items()}
    metadata = {f"llama.{key}": value for key, value in values.items() if value is not None}
    return model({"general.architecture": "llama", **metadata})
