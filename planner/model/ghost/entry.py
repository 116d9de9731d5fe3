"""Ghosts of catalogue entries: the tensors and metadata that the entry's file has, without a file at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from planner.errors import ModelError
from planner.model.ggml_types import type_named
from planner.model.gguf import DEFAULT_ALIGNMENT, TensorInfo
from planner.model.ghost.header import GhostHeader
from planner.model.ghost.pairs import number_pair, text_pair
from planner.model.ghost.vocabulary import made_up_vocabulary
from planner.units import pad

if TYPE_CHECKING:
    from planner.model.catalogue import CatalogueEntry

Role = Literal["embedding", "output", "attention", "feed_forward", "norm"]
"""What a tensor is for; the catalogue gives each role its type."""


class TensorRow(NamedTuple):
    """A tensor of an architecture; a name with `{layer}` stands for one tensor per layer."""

    name: str
    role: Role
    shape: tuple[str, ...]
    """Names of dimensions (`_dimensions`) in ggml's order: the length of a row first."""


_LLAMA = (
    TensorRow("token_embd.weight", "embedding", ("embedding", "vocabulary")),
    TensorRow("output_norm.weight", "norm", ("embedding",)),
    TensorRow("output.weight", "output", ("embedding", "vocabulary")),
    TensorRow("blk.{layer}.attn_norm.weight", "norm", ("embedding",)),
    TensorRow("blk.{layer}.attn_q.weight", "attention", ("embedding", "query")),
    TensorRow("blk.{layer}.attn_k.weight", "attention", ("embedding", "key")),
    TensorRow("blk.{layer}.attn_v.weight", "attention", ("embedding", "value")),
    TensorRow("blk.{layer}.attn_output.weight", "attention", ("attended", "embedding")),
    TensorRow("blk.{layer}.ffn_norm.weight", "norm", ("embedding",)),
    TensorRow("blk.{layer}.ffn_gate.weight", "feed_forward", ("embedding", "feed_forward")),
    TensorRow("blk.{layer}.ffn_up.weight", "feed_forward", ("embedding", "feed_forward")),
    TensorRow("blk.{layer}.ffn_down.weight", "feed_forward", ("feed_forward", "embedding")),
)

TENSORS: Mapping[str, tuple[TensorRow, ...]] = {
    "llama": _LLAMA,
    "gemma3": (
        *_LLAMA,
        TensorRow("blk.{layer}.attn_q_norm.weight", "norm", ("key_head",)),
        TensorRow("blk.{layer}.attn_k_norm.weight", "norm", ("key_head",)),
        TensorRow("blk.{layer}.post_attention_norm.weight", "norm", ("embedding",)),
        TensorRow("blk.{layer}.post_ffw_norm.weight", "norm", ("embedding",)),
    ),
}
"""The tensors of each architecture that a ghost can be written for, as llama.cpp's loader asks for them."""

FILE_TYPES = {
    "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q2_K": 10, "Q3_K_M": 12, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16,
    "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32, "MXFP4_MOE": 38,
}  # fmt: skip
"""`llama_ftype` of llama.h by the catalogue's names."""

_QUANTISATION_VERSION = 2
"""GGML_QNT_VERSION."""


def ghost_tensors(entry: CatalogueEntry) -> tuple[TensorInfo, ...]:
    """Return the tensors of the entry's file, in file order.

    Raises `ModelError` for an architecture that is not in `TENSORS` and for a type that cannot store a row.
    """
    rows = TENSORS.get(entry.architecture)
    if rows is None:
        raise ModelError(
            f"No ghost can be written of {entry.name}: its architecture is {entry.architecture}.",
            f"Ghosts are known for {', '.join(TENSORS)}.",
        )
    sizes = _dimensions(entry)
    tensors: list[TensorInfo] = []
    offset = 0
    for row in rows:
        type_name: str = getattr(entry.quantisation, row.role)
        if type_name == "tied":
            continue
        ggml_type = type_named(type_name)
        shape = tuple(sizes[dimension] for dimension in row.shape)
        if shape[0] % ggml_type.block_elements:
            raise ModelError(
                f"{entry.name}: {type_name} cannot store {row.name.format(layer=0)}, "
                f"whose rows have {shape[0]} elements.",
                f"Choose a type for {row.role} whose blocks are shorter.",
            )
        for layer in range(entry.hyperparameters.block_count if "{layer}" in row.name else 1):
            tensors.append(TensorInfo(row.name.format(layer=layer), shape, ggml_type, offset))
            offset += pad(tensors[-1].nbytes, DEFAULT_ALIGNMENT)
    return tuple(tensors)


def entry_header(entry: CatalogueEntry) -> GhostHeader:
    """The header of the entry's file, with a made-up vocabulary of the true size. Raises ModelError as above."""
    return (
        GhostHeader.of_tensors(ghost_tensors(entry))
        .with_pairs(_metadata(entry))
        .with_pairs(made_up_vocabulary(entry.architecture, entry.vocabulary_size))
        .marked(entry.title)
    )


def _metadata(entry: CatalogueEntry) -> Mapping[str, bytes]:
    """The shape under its own keys, and what a converter says of a file."""
    shape = {key: value for key, value in entry.metadata().items() if not isinstance(value, str)}
    numbers = {
        **shape,
        "general.file_type": FILE_TYPES[entry.quantisation.file_type],
        "general.quantization_version": _QUANTISATION_VERSION,
    }
    texts = {
        "general.architecture": entry.architecture,
        "general.type": "model",
        "general.description": "Written by planner to measure memory and speed; what it generates means nothing.",
    }
    return {
        **{key: text_pair(key, text) for key, text in texts.items()},
        **{key: number_pair(key, number) for key, number in numbers.items()},
    }


def _dimensions(entry: CatalogueEntry) -> dict[str, int]:
    """Return the sizes that `TensorRow.shape` names, in elements."""
    shape = entry.hyperparameters
    return {
        "embedding": shape.embedding_length,
        "feed_forward": shape.feed_forward_length,
        "vocabulary": entry.vocabulary_size,
        "key_head": shape.key_length,
        "query": shape.attention_head_count * shape.key_length,
        "key": shape.attention_head_count_kv * shape.key_length,
        "value": shape.attention_head_count_kv * shape.value_length,
        "attended": shape.attention_head_count * shape.value_length,
    }
