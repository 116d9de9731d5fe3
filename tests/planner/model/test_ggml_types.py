from __future__ import annotations

import gguf
import pytest

from planner.errors import ModelError
from planner.launch import CACHE_TYPES
from planner.model.ggml_types import GGML_TYPES, type_named


def test_sizes_equal_those_of_the_gguf_package() -> None:
    known = {int(number): sizes for number, sizes in gguf.GGML_QUANT_SIZES.items()}
    ours = {number: (kind.block_elements, kind.block_bytes) for number, kind in GGML_TYPES.items()}
    assert {number: ours[number] for number in known} == known


def test_names_equal_those_of_the_gguf_package() -> None:
    for number in gguf.GGML_QUANT_SIZES:
        assert GGML_TYPES[int(number)].name.lower() == number.name.lower()


def test_every_cache_type_is_a_type_of_ggml() -> None:
    sizes = {name: type_named(name).row_bytes(256) for name in CACHE_TYPES}
    assert sizes == {
        "f32": 1024,
        "f16": 512,
        "bf16": 512,
        "q8_0": 272,
        "q4_0": 144,
        "q4_1": 160,
        "iq4_nl": 144,
        "q5_0": 176,
        "q5_1": 192,
    }


def test_a_type_is_found_however_its_name_is_written() -> None:
    assert type_named("Q4_K") is type_named("q4_k") is GGML_TYPES[12]


def test_an_unknown_type_is_named_in_the_error() -> None:
    with pytest.raises(ModelError, match="'q3_0' is not a tensor type of ggml"):
        type_named("q3_0")


def test_a_row_that_is_no_whole_number_of_blocks_has_no_size() -> None:
    with pytest.raises(ModelError, match=r"A row of 80 elements .* q8_0 blocks \(32 elements each\)"):
        type_named("q8_0").row_bytes(80)
