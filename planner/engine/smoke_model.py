"""A model of one layer with weights of zero: small enough to write in a moment, whole enough to decode a token."""

from __future__ import annotations

import struct
from pathlib import Path

from planner.errors import PlannerError
from planner.model.ggml_types import GGML_TYPES, type_named
from planner.units import pad

_EMBEDDING = 256
"""One block of a K-quant, so that the kernels of all common types are called."""
_ALIGNMENT = 32
_UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 6, 7, 8, 9
_CONTROL = ("<unk>", "<s>", "</s>")
_TOKENS = (*_CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)))
_TYPES = (2, 3, 3, *(6,) * 256)
"""llama.cpp's token types: unknown, control, byte."""

_TENSORS: tuple[tuple[str, tuple[int, ...], str], ...] = (
    ("token_embd.weight", (_EMBEDDING, len(_TOKENS)), "f16"),
    ("output_norm.weight", (_EMBEDDING,), "f32"),
    ("output.weight", (_EMBEDDING, len(_TOKENS)), "q8_0"),
    ("blk.0.attn_norm.weight", (_EMBEDDING,), "f32"),
    ("blk.0.attn_q.weight", (_EMBEDDING, _EMBEDDING), "q4_0"),
    ("blk.0.attn_k.weight", (_EMBEDDING, _EMBEDDING), "q4_K"),
    ("blk.0.attn_v.weight", (_EMBEDDING, _EMBEDDING), "q6_K"),
    ("blk.0.attn_output.weight", (_EMBEDDING, _EMBEDDING), "q5_K"),
    ("blk.0.ffn_norm.weight", (_EMBEDDING,), "f32"),
    ("blk.0.ffn_gate.weight", (_EMBEDDING, _EMBEDDING), "q4_0"),
    ("blk.0.ffn_up.weight", (_EMBEDDING, _EMBEDDING), "q4_K"),
    ("blk.0.ffn_down.weight", (_EMBEDDING, _EMBEDDING), "q8_0"),
)


def write_smoke_model(path: Path) -> Path:
    """Write the model and return its path: about half a megabyte, most of it a hole."""
    numbers = {ggml_type: number for number, ggml_type in GGML_TYPES.items()}
    infos = b""
    offset = 0
    for name, shape, type_name in _TENSORS:
        ggml_type = type_named(type_name)
        infos += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos += struct.pack("<IQ", numbers[ggml_type], offset)
        rows = shape[1] if len(shape) > 1 else 1
        offset += pad(ggml_type.row_bytes(shape[0]) * rows, _ALIGNMENT)
    metadata = _metadata()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(_TENSORS), len(metadata)) + b"".join(metadata) + infos
    try:
        with path.open("wb") as file:
            file.write(head)
            file.truncate(pad(len(head), _ALIGNMENT) + offset)
    except OSError as error:
        raise PlannerError(f"{path} cannot be written: {error.strerror}.", "Name another folder with TMPDIR.") from None
    return path


def _metadata() -> list[bytes]:
    count = struct.pack("<Q", len(_TOKENS))
    return [
        _entry("general.architecture", _STRING, _string("llama")),
        _entry("general.name", _STRING, _string("smoke test")),
        *(
            _entry(f"llama.{key}", _UINT32, struct.pack("<I", value))
            for key, value in (
                ("context_length", 256),
                ("embedding_length", _EMBEDDING),
                ("block_count", 1),
                ("feed_forward_length", _EMBEDDING),
                ("attention.head_count", 4),
                ("attention.head_count_kv", 4),
                ("rope.dimension_count", _EMBEDDING // 4),
            )
        ),
        _entry("llama.attention.layer_norm_rms_epsilon", _FLOAT32, struct.pack("<f", 1e-5)),
        _entry("tokenizer.ggml.model", _STRING, _string("llama")),
        _entry("tokenizer.ggml.tokens", _ARRAY, struct.pack("<I", _STRING) + count + b"".join(map(_string, _TOKENS))),
        _entry("tokenizer.ggml.scores", _ARRAY, struct.pack("<I", _FLOAT32) + count + bytes(4 * len(_TOKENS))),
        _entry(
            "tokenizer.ggml.token_type", _ARRAY, struct.pack("<I", 5) + count + struct.pack(f"<{len(_TYPES)}i", *_TYPES)
        ),
        *(
            _entry(f"tokenizer.ggml.{name}_token_id", _UINT32, struct.pack("<I", value))
            for name, value in (("unknown", 0), ("bos", 1), ("eos", 2))
        ),
        _entry("tokenizer.chat_template", _STRING, _string("{{ messages[0]['content'] }}")),
    ]


def _entry(key: str, kind: int, value: bytes) -> bytes:
    return _string(key) + struct.pack("<I", kind) + value


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded
