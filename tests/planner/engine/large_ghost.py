"""A full-size model of which only the header exists: the shapes of an 8B in F16, 16 GB apparent."""

from __future__ import annotations

import os
from pathlib import Path

import numpy
from gguf import GGMLQuantizationType, GGUFWriter

LAYERS, EMBEDDING, FEED_FORWARD, HEADS, KV_HEADS, VOCABULARY = 32, 4096, 14336, 32, 8, 128_256
KV_ROW = KV_HEADS * EMBEDDING // HEADS


def write_8b(path: Path, *, whole: bool = True) -> Path:
    """The header, and behind it the hole unless the file is to be cut off there."""
    writer = GGUFWriter(path, "llama")
    writer.add_name("ghost of an 8B")
    writer.add_block_count(LAYERS)
    writer.add_context_length(131_072)
    writer.add_embedding_length(EMBEDDING)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(EMBEDDING // HEADS)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("none")
    data_bytes = _add_tensors(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    header_bytes = path.stat().st_size
    padded = -(-header_bytes // 32) * 32
    os.truncate(path, padded + (data_bytes if whole else 0))
    return path


def _add_tensors(writer: GGUFWriter) -> int:
    total = 0
    for name, shape in _tensors():
        kind = GGMLQuantizationType.F32 if len(shape) == 1 else GGMLQuantizationType.F16
        nbytes = int(numpy.prod(shape)) * (4 if len(shape) == 1 else 2)
        writer.add_tensor_info(name, shape, numpy.dtype(numpy.float32), nbytes, raw_dtype=kind)
        total += nbytes
    return total


def _tensors() -> list[tuple[str, tuple[int, ...]]]:
    tensors: list[tuple[str, tuple[int, ...]]] = [
        ("token_embd.weight", (VOCABULARY, EMBEDDING)),
        ("output.weight", (VOCABULARY, EMBEDDING)),
        ("output_norm.weight", (EMBEDDING,)),
    ]
    for layer in range(LAYERS):
        tensors += [
            (f"blk.{layer}.attn_norm.weight", (EMBEDDING,)),
            (f"blk.{layer}.ffn_norm.weight", (EMBEDDING,)),
            (f"blk.{layer}.attn_q.weight", (EMBEDDING, EMBEDDING)),
            (f"blk.{layer}.attn_k.weight", (KV_ROW, EMBEDDING)),
            (f"blk.{layer}.attn_v.weight", (KV_ROW, EMBEDDING)),
            (f"blk.{layer}.attn_output.weight", (EMBEDDING, EMBEDDING)),
            (f"blk.{layer}.ffn_gate.weight", (FEED_FORWARD, EMBEDDING)),
            (f"blk.{layer}.ffn_up.weight", (FEED_FORWARD, EMBEDDING)),
            (f"blk.{layer}.ffn_down.weight", (EMBEDDING, FEED_FORWARD)),
        ]
    return tensors
