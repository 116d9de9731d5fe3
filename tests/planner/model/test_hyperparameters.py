from __future__ import annotations

from typing import Any

import pytest

from planner import Model
from planner.errors import ModelError
from planner.model.architectures import ARCHITECTURES
from planner.model.gguf import LongArray
from planner.model.hyperparameters import Hyperparameters, Keys


def shape(architecture: str = "llama", **changes: Any) -> Hyperparameters:
    """The hyperparameters of a small model with `changes`; None takes a key away, `__` stands for a dot."""
    values: dict[str, Any] = {
        "context_length": 4096,
        "embedding_length": 64,
        "block_count": 6,
        "feed_forward_length": 128,
        "attention.head_count": 4,
    } | {name.replace("__", "."): value for name, value in changes.items()}
    metadata = {f"{architecture}.{key}": value for key, value in values.items() if value is not None}
    return read(architecture, metadata)


def read(architecture: str, metadata: dict[str, Any]) -> Hyperparameters:
    return ARCHITECTURES[architecture].read(Keys(metadata, architecture))


def test_the_shape_of_gemma(gemma: Model) -> None:
    gemma_3 = gemma.hyperparameters
    assert (gemma_3.n_ctx_train, gemma_3.n_embd, gemma_3.n_layer, gemma_3.n_vocab) == (32768, 640, 18, 262144)
    assert (gemma_3.head_k, gemma_3.head_v, gemma_3.n_swa) == (256, 256, 512)
    assert set(gemma_3.n_head) == {4} and set(gemma_3.n_head_kv) == {1} and set(gemma_3.n_ff) == {2048}
    assert [layer for layer in range(18) if not gemma_3.swa_layers[layer]] == [5, 11, 17]
    assert gemma_3.n_embd_k_gqa(0) == gemma_3.n_embd_v_gqa(17) == 256
    assert set(gemma_3.gqa_groups) == {4}


def test_the_shape_of_smollm(smollm: Model) -> None:
    smollm_2 = smollm.hyperparameters
    assert (smollm_2.n_ctx_train, smollm_2.n_embd, smollm_2.n_layer, smollm_2.n_vocab) == (8192, 576, 30, 49152)
    assert (smollm_2.head_k, set(smollm_2.n_head), set(smollm_2.n_head_kv)) == (64, {9}, {3})
    assert not any(smollm_2.swa_layers)


def test_without_head_count_kv_every_head_owns_a_key() -> None:
    assert shape(attention__head_count=[4, 4, 4, 4, 4, 2][0]).n_head_kv == (4,) * 6
    assert shape(attention__head_count=(4, 4, 4, 4, 4, 2)).n_head_kv == (4, 4, 4, 4, 4, 2)


def test_without_key_length_heads_share_the_embedding() -> None:
    found = shape()
    assert (found.head_k, found.head_v, found.head_k_swa, found.head_v_swa) == (16, 16, 16, 16)


def test_key_and_value_length_are_taken_where_they_are_given() -> None:
    found = shape(attention__key_length=32, attention__value_length=8)
    assert (found.head_k, found.head_v, found.head_k_swa, found.head_v_swa) == (32, 8, 32, 8)
    assert (found.n_embd_k_gqa(0), found.n_embd_v_gqa(0)) == (128, 32)


def test_layers_with_a_window_may_have_heads_of_their_own_size() -> None:
    found = shape("gemma3", attention__sliding_window=512, attention__key_length_swa=8, attention__value_length_swa=4)
    assert [found.n_embd_k_gqa(layer) for layer in range(6)] == [32] * 5 + [64]
    assert [found.n_embd_v_gqa(layer) for layer in range(6)] == [16] * 5 + [64]


def test_key_length_is_not_read_where_the_first_layer_has_no_heads() -> None:
    assert shape(attention__head_count=(0, 4, 4, 4, 4, 4), attention__key_length=32).head_k == 0


def test_values_may_differ_from_layer_to_layer() -> None:
    found = shape(attention__head_count_kv=(4, 2, 1, 0, 4, 4), feed_forward_length=(1, 2, 3, 4, 5, 6))
    assert found.n_head_kv == (4, 2, 1, 0, 4, 4)
    assert found.n_ff == (1, 2, 3, 4, 5, 6)
    assert found.gqa_groups == (1, 2, 4, 0, 1, 1)


@pytest.mark.parametrize("length", [5, 7])
@pytest.mark.parametrize("key", ["attention__head_count", "attention__head_count_kv", "feed_forward_length"])
def test_an_array_must_have_an_entry_for_each_layer_and_no_more(key: str, length: int) -> None:
    words = rf"key llama\.{key.replace('__', '.')} has wrong array length; expected 6, got {length}"
    with pytest.raises(ModelError, match=words):
        shape(**{key: (4,) * length})


@pytest.mark.parametrize("length", [0, 5, 6, 7])
def test_a_window_pattern_of_any_length_is_taken_and_what_it_lacks_is_dense(length: int) -> None:
    flags = (True,) * length
    found = shape("gemma3", attention__sliding_window=512, attention__sliding_window_pattern=flags)
    assert found.swa_layers == ((True,) * 6 if length >= 6 else (True,) * length + (False,) * (6 - length))


@pytest.mark.parametrize("key", ["context_length", "embedding_length", "block_count"])
def test_a_required_key_that_is_missing_is_named(key: str) -> None:
    with pytest.raises(ModelError, match=rf"The metadata have no llama\.{key}, which llama\.cpp requires"):
        shape(**{key: None})


@pytest.mark.parametrize("value", [-1, 1.5, "many", True, LongArray(4096), (1, 2)])
def test_a_count_that_is_no_whole_number_is_named(value: object) -> None:
    with pytest.raises(ModelError, match=r"llama\.embedding_length is .*, not a whole number"):
        shape(embedding_length=value)


@pytest.mark.parametrize("value", [-1, 1.5, "many", True, LongArray(4096), (1, 2, 3, 4, 5, "6")])
def test_a_value_of_a_layer_that_is_no_whole_number_is_named(value: object) -> None:
    with pytest.raises(ModelError, match=r"llama\.attention\.head_count_kv holds .*, not a whole number"):
        shape(attention__head_count_kv=value)


@pytest.mark.parametrize("layers", [0, 513])
def test_llama_cpp_loads_1_to_512_layers(layers: int) -> None:
    with pytest.raises(ModelError, match=rf"block_count is {layers}; llama\.cpp loads 1 to 512 layers"):
        shape(block_count=layers)
    assert shape(block_count=512).n_layer == 512


@pytest.mark.parametrize(
    ("tokens", "size"),
    [({"tokens": LongArray(32000)}, 32000), ({"tokens": ("a", "b")}, 2), ({"vocab_size": 99}, 99), ({}, 0)],
)
def test_the_vocabulary_is_counted_by_its_tokens_else_by_its_size(tokens: dict[str, Any], size: int) -> None:
    metadata: dict[str, Any] = {"llama.context_length": 1, "llama.embedding_length": 1, "llama.block_count": 1}
    if "tokens" in tokens:
        metadata["tokenizer.ggml.tokens"] = tokens["tokens"]
    if "vocab_size" in tokens:
        metadata["llama.vocab_size"] = tokens["vocab_size"]
    assert read("llama", metadata).n_vocab == size


def test_a_window_pattern_in_the_file_wins_over_the_architecture_s_period() -> None:
    flags = (True, False, True, True, False, True)
    found = shape("gemma3", attention__sliding_window=512, attention__sliding_window_pattern=flags)
    assert found.swa_layers == flags


def test_a_number_for_the_window_pattern_is_its_period() -> None:
    found = shape("gemma3", attention__sliding_window=512, attention__sliding_window_pattern=2)
    assert found.swa_layers == (True, False) * 3


@pytest.mark.parametrize(("period", "windowed"), [(0, True), (1, False)])
def test_period_0_gives_every_layer_a_window_and_period_1_none(period: int, windowed: bool) -> None:
    found = shape("gemma3", attention__sliding_window=512, attention__sliding_window_pattern=period)
    assert found.swa_layers == (windowed,) * 6


def test_gemma_without_a_window_sees_the_whole_context_everywhere() -> None:
    assert shape("gemma3").swa_layers == (False,) * 6
    assert shape("gemma3", attention__sliding_window=0).n_swa == 0


def test_llama_pays_no_attention_to_a_window() -> None:
    assert shape(attention__sliding_window=512).swa_layers == (False,) * 6


def test_the_dense_layer_can_open_the_period() -> None:
    found = shape("laguna", attention__sliding_window=512, attention__sliding_window_pattern=3)
    assert found.swa_layers == (False, True, True, False, True, True)


def test_blocks_that_predict_further_tokens_are_no_layers_of_the_model() -> None:
    found = shape("glm4moe", nextn_predict_layers=2)
    assert (found.n_layer, found.n_layer_all) == (4, 6)
    with pytest.raises(ModelError, match=r"nextn_predict_layers is 6 of 6 layers"):
        shape("glm4moe", nextn_predict_layers=6)


def test_latent_attention_needs_both_of_its_sizes() -> None:
    latent = {"attention__key_length": 576, "attention__value_length": 512, "attention__key_length_mla": 192}
    assert not shape("deepseek2", **latent).is_mla  # an old conversion
    found = shape("deepseek2", **latent, attention__value_length_mla=128)
    assert found.is_mla and found.head_k_mla == 192
    assert not shape("llama", **latent, attention__value_length_mla=128).is_mla  # llama does not read them
