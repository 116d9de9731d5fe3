"""Projectors for images whose weights are all zero, in the shapes of real ones: llama-server takes them as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from gguf_files import ARRAY, BOOL, F32, STRING, U32, Pair, gguf

_F32, _F16 = 0, 1
_BYTES = {_F32: 4, _F16: 2}

_Tensor = tuple[str, tuple[int, ...], int]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A projector of one of llama.cpp's kinds. Widths are elements."""

    kind: str = "idefics3"
    out: int = 576
    """What a token of the model is wide: 576 for SmolLM2-135M, 640 for Gemma 3 270M."""
    width: int = 64
    heads: int = 2
    ffn: int = 128
    layers: int = 2
    image: int = 112
    patch: int = 14
    merge: int = 2
    class_token: bool = False
    deep_layers: tuple[int, ...] = ()
    matrix_type: int = _F16

    @property
    def is_qwen(self) -> bool:
        return self.kind.startswith("qwen")

    @property
    def is_qwen2(self) -> bool:
        return self.kind.startswith("qwen2")

    @property
    def has_windows(self) -> bool:
        return self.kind == "qwen2.5vl_merger"


def write_projector(path: Path, shape: Shape) -> Path:
    """Write it; its weights are a hole in the file."""
    infos, offset = [], 0
    for name, extents, kind in (*_encoder(shape), *_projector(shape)):
        infos.append((name, extents, kind, offset))
        offset += -(-prod(extents) * _BYTES[kind] // 32) * 32
    header = gguf(_pairs(shape), infos)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(-(-len(header) // 32) * 32 + offset)
    return path


def _pairs(shape: Shape) -> list[Pair]:
    half = (F32, [0.5, 0.5, 0.5])
    vision: list[Pair] = [
        ("embedding_length", U32, shape.width),
        ("attention.head_count", U32, shape.heads),
        ("feed_forward_length", U32, shape.ffn),
        ("block_count", U32, shape.layers),
        ("projection_dim", U32, shape.out),
        ("attention.layer_norm_epsilon", F32, 1e-6),
        ("image_size", U32, shape.image),
        ("patch_size", U32, shape.patch),
        ("image_mean", ARRAY, half),
        ("image_std", ARRAY, half),
        ("spatial_merge_size" if shape.is_qwen else "projector.scale_factor", U32, shape.merge),
        *([("n_wa_pattern", U32, 8)] if shape.has_windows else []),
    ]
    return [
        ("general.architecture", STRING, "clip"),
        ("clip.has_vision_encoder", BOOL, True),
        ("clip.projector_type", STRING, shape.kind),
        ("clip.use_silu" if shape.has_windows else "clip.use_gelu", BOOL, True),
        *((f"clip.vision.{key}", kind, value) for key, kind, value in vision),
    ]


def _encoder(shape: Shape) -> Iterator[_Tensor]:
    width, ffn = shape.width, shape.ffn
    yield "v.patch_embd.weight", (shape.patch, shape.patch, 3, width), shape.matrix_type
    if shape.is_qwen:
        yield "v.patch_embd.weight.1", (shape.patch, shape.patch, 3, width), shape.matrix_type
    if not shape.is_qwen2:
        yield "v.patch_embd.bias", (width,), _F32
        yield "v.position_embd.weight", (width, (shape.image // shape.patch) ** 2 + shape.class_token), _F32
    if shape.class_token:
        yield "v.class_embd", (width,), _F32
        yield from _norm("v.pre_ln", width)
    for layer in range(shape.layers):
        block = f"v.blk.{layer}"
        yield from _norm(f"{block}.ln1", width)
        if shape.kind == "qwen3vl_merger":
            yield from _matrix(f"{block}.attn_qkv", width, 3 * width, shape)
        else:
            for name in ("attn_q", "attn_k", "attn_v"):
                yield from _matrix(f"{block}.{name}", width, width, shape)
        yield from _matrix(f"{block}.attn_out", width, width, shape)
        yield from _norm(f"{block}.ln2", width)
        for name in ("ffn_up", "ffn_gate") if shape.has_windows else ("ffn_up",):
            yield from _matrix(f"{block}.{name}", width, ffn, shape)
        yield from _matrix(f"{block}.ffn_down", ffn, width, shape)
    for layer in shape.deep_layers:
        yield from _norm(f"v.deepstack.{layer}.norm", 4 * width)
        yield from _matrix(f"v.deepstack.{layer}.fc1", 4 * width, 4 * width, shape)
        yield from _matrix(f"v.deepstack.{layer}.fc2", 4 * width, shape.out, shape)
    if shape.kind not in ("mlp", "internvl"):
        yield from _norm("v.post_ln", width)


def _projector(shape: Shape) -> Iterator[_Tensor]:
    width, out, merged = shape.width, shape.out, shape.width * shape.merge**2
    match shape.kind:
        case "gemma3":
            yield "mm.input_projection.weight", (out, width), shape.matrix_type
            yield "mm.soft_emb_norm.weight", (width,), _F32
        case "idefics3":
            yield "mm.model.fc.weight", (merged, out), shape.matrix_type
        case "internvl":
            yield from _norm("mm.model.mlp.0", merged)
            yield from _matrix("mm.model.mlp.1", merged, out, shape)
            yield from _matrix("mm.model.mlp.3", out, out, shape)
        case "lfm2":
            yield from _norm("mm.input_norm", merged)
            yield from _matrix("mm.1", merged, out, shape)
            yield from _matrix("mm.2", out, out, shape)
        case "mlp":
            yield from _matrix("mm.0", width, out, shape)
            yield from _matrix("mm.2", out, out, shape)
        case _:
            yield from _matrix("mm.0", merged, merged, shape)
            yield from _matrix("mm.2", merged, out, shape)


def _norm(name: str, width: int) -> Iterator[_Tensor]:
    yield f"{name}.weight", (width,), _F32
    yield f"{name}.bias", (width,), _F32


def _matrix(name: str, width: int, rows: int, shape: Shape) -> Iterator[_Tensor]:
    yield f"{name}.weight", (width, rows), shape.matrix_type
    yield f"{name}.bias", (rows,), _F32
