"""Models that exist only as metadata, for which no file is needed, and launches of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from planner import Launch, Model
from planner.launch import CACHE_TYPES
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


def launches(**further: st.SearchStrategy[Any]) -> st.SearchStrategy[Launch]:
    """Launches that differ in everything that decides memory on a processor, and in these further fields."""
    return st.builds(
        Launch,
        ctx_size=st.one_of(st.just(0), st.integers(1, 300_000)),
        parallel=st.one_of(st.none(), st.integers(1, 300)),
        kv_unified=st.sampled_from([None, False, True]),
        cache_type_k=st.sampled_from(CACHE_TYPES),
        cache_type_v=st.sampled_from(CACHE_TYPES),
        flash_attn=st.sampled_from(["auto", "on", "off"]),
        batch_size=st.integers(1, 5000),
        ubatch_size=st.integers(1, 5000),
        swa_full=st.booleans(),
        repack=st.booleans(),
        load_mode=st.sampled_from(["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]),
        cache_ram=st.integers(-1, 20_000),
        ctx_checkpoints=st.integers(0, 100),
        embeddings=st.booleans(),
        **further,
    )
