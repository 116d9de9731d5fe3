"""The catalogue decodes strictly, and its own entries are sound."""

from __future__ import annotations

from typing import get_args

import gguf
import pytest

from planner.errors import ModelError
from planner.model.catalogue import (
    CatalogueEntry,
    FileType,
    TensorType,
    decode_catalogue,
    find_entry,
    load_catalogue,
)
from planner.model.ggml_types import type_named

ENTRY = """\
version: 1
models:
  - name: tiny
    title: Tiny
    architecture: llama
    source: made up
    hyperparameters:
      block_count: 2
      context_length: 128
      embedding_length: 64
      feed_forward_length: 96
      attention.head_count: 4
      attention.head_count_kv: 2
      attention.layer_norm_rms_epsilon: 1.0e-5
    vocabulary_size: 1024
    quantisation:
      file_type: Q8_0
      embedding: Q8_0
      output: tied
      attention: Q8_0
      feed_forward: Q8_0
      norm: F32
"""


def decode(text: str) -> tuple[CatalogueEntry, ...]:
    return decode_catalogue(text, origin="mine.yaml")


def test_the_first_entry_is_the_default_ghost() -> None:
    assert [entry.name for entry in load_catalogue()] == ["smollm2-135m", "gemma-3-270m"]


def test_an_entry_is_found_by_its_name() -> None:
    assert find_entry("gemma-3-270m").architecture == "gemma3"


def test_an_unknown_name_lists_the_valid_ones() -> None:
    with pytest.raises(ModelError, match=r"'smollm'.*smollm2-135m, gemma-3-270m"):
        find_entry("smollm")


def test_metadata_has_full_key_names_and_no_key_without_a_value() -> None:
    (tiny,) = decode(ENTRY)
    assert tiny.metadata() == {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "llama.block_count": 2,
        "llama.context_length": 128,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": 1024,
    }


@pytest.mark.parametrize(
    ("written", "instead", "complaint"),
    [
        ("version: 1", "version: 2", r"mine\.yaml has version 2; this planner reads version 1"),
        ("version: 1\n", "", r"has version None"),
        ("version: 1", "versions: 1\nversion: 1", r"unknown key 'versions'.*'version'"),
        ("title: Tiny", "titel: Tiny", r"mine\.yaml, model tiny: unknown key 'titel'.*'title'"),
        ("block_count", "blocks_count", r"tiny, hyperparameters: unknown key 'blocks_count'.*'block_count'"),
        ("norm: F32", "norms: F32", r"model tiny, quantisation: unknown key 'norms'.*'norm'"),
        ("norm: F32", "norm: F32\n      zzz: 1", r"unknown key 'zzz'.*The keys here are file_type,"),
        ("    title: Tiny\n", "", r"model tiny: Object missing required field `title`"),
        ("block_count: 2", "block_count: 0", r"model tiny: .*`hyperparameters\.block_count`"),
        ("block_count: 2", "block_count: two", r"Expected `int`, got `str`: `hyperparameters\.block_count`"),
        ("1.0e-5", "1e-5", r"Expected `float`, got `str`"),
        ("attention: Q8_0", "attention: Q9_0", r"Invalid enum value 'Q9_0': `quantisation\.attention`"),
        ("name: tiny", "name: ../tiny", r"model \.\./tiny: .*`name`"),
        ("vocabulary_size: 1024", "vocabulary_size: 10", r"`vocabulary_size`"),
        ("name: tiny\n    title: Tiny", "title: Tiny", r"mine\.yaml, model 1: .*`name`"),
        ("norm: F32", "norm: F32\n      norm: F16", r"mine\.yaml, line 23: the key 'norm' is there twice"),
        ("title: Tiny", "? [title]\n    : Tiny", r"mine\.yaml is not valid YAML: .*unhashable key"),
        ("models:", "models: [", r"mine\.yaml is not valid YAML: .*line"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(written: str, instead: str, complaint: str) -> None:
    assert written in ENTRY
    with pytest.raises(ModelError, match=complaint):
        decode(ENTRY.replace(written, instead, 1))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not a catalogue"),
        ("- name: tiny", "is not a catalogue"),
        ("version: 1", "has no list `models`"),
        ("version: 1\nmodels: []", "has no list `models`"),
        ("version: 1\nmodels: {name: tiny}", "has no list `models`"),
        ("version: 1\nmodels: [tiny]", "model 1: Expected `object`"),
        ("version: 1\nmodels: [{name: tiny, hyperparameters: 3}]", "model tiny: "),
        (ENTRY + ENTRY.partition("models:\n")[2], "two models are named 'tiny'"),
    ],
)
def test_a_text_of_another_shape_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        decode(text)


def test_widths_of_heads_follow_from_the_embedding_where_the_file_names_none() -> None:
    (tiny,) = decode(ENTRY)
    assert (tiny.hyperparameters.key_length, tiny.hyperparameters.value_length) == (16, 16)
    gemma = find_entry("gemma-3-270m").hyperparameters
    assert (gemma.key_length, gemma.value_length) == (256, 256)


def test_every_type_that_an_entry_may_use_exists() -> None:
    assert all(type_named(name) for name in get_args(TensorType))
    assert all(gguf.LlamaFileType[f"MOSTLY_{name}"] for name in get_args(FileType))
