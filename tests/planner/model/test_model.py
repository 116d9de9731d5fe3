from __future__ import annotations

from pathlib import Path

import pytest
from gguf_files import BOOL, LLAMA, STRING, complete, gguf

from planner import Model
from planner.errors import ModelError

WEIGHTS = [("token_embd.weight", (64, 32), 1, 0), ("output.weight", (64, 32), 8, 4096)]
DATA_BYTES = 4096 + 64 * 32 // 32 * 34


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "small.gguf"


def test_a_model_knows_its_weights_and_its_parameters(path: Path) -> None:
    path.write_bytes(complete((*LLAMA, ("general.name", STRING, "Small")), WEIGHTS, DATA_BYTES))
    model = Model.open(path)
    assert (model.name, model.architecture) == ("Small", "llama")
    assert (model.tensor_bytes, model.parameters) == (DATA_BYTES, 2 * 64 * 32)
    assert not model.is_ghost


def test_real_models_hold_what_llama_cpp_says_they_hold(gemma: Model, smollm: Model) -> None:
    assert gemma.tensor_bytes == 246_587_904  # llama_model_size
    assert gemma.parameters == 268_098_176
    assert smollm.parameters == 134_515_008


def test_a_model_without_a_name_is_called_as_its_file(path: Path) -> None:
    path.write_bytes(gguf())
    assert Model.open(path).name == "small"


def test_a_file_cut_off_in_its_data_says_how_much_is_missing(path: Path) -> None:
    whole = complete(LLAMA, WEIGHTS, DATA_BYTES)
    path.write_bytes(whole[:-1000])
    with pytest.raises(ModelError) as caught:
        Model.open(path)
    assert caught.value.message == (
        f"{path} is cut off: its tensors need {len(whole):,} bytes and the file has {len(whole) - 1000:,} "
        "(1,000 missing)."
    )
    assert caught.value.hint == "Finish the download."


def test_opened_as_a_header_a_cut_off_file_is_a_whole_model(path: Path) -> None:
    path.write_bytes(complete(LLAMA, WEIGHTS, 0))
    assert Model.open(path, header_only=True).tensor_bytes == DATA_BYTES


@pytest.mark.parametrize("padding", [0, 1, 31, 32])
def test_metadata_without_a_tensor_are_a_model_without_weights(path: Path, padding: int) -> None:
    path.write_bytes(gguf() + bytes(padding))
    model = Model.open(path)
    assert (model.tensors, model.tensor_bytes, model.parameters) == ((), 0, 0)
    assert model.hyperparameters.n_layer == 2


def test_a_file_that_names_no_architecture_is_no_model(path: Path) -> None:
    path.write_bytes(gguf(LLAMA[1:]))
    with pytest.raises(ModelError, match="names no architecture"):
        Model.open(path)


def test_a_ghost_is_known_by_its_mark(path: Path) -> None:
    path.write_bytes(gguf((*LLAMA, ("planner.ghost", BOOL, True))))
    assert Model.open(path).is_ghost


def test_an_architecture_that_is_not_in_the_table_has_no_rules(path: Path) -> None:
    path.write_bytes(gguf((("general.architecture", STRING, "tomorrow"),)))
    assert Model.open(path).rules is None
    path.write_bytes(gguf((("general.architecture", STRING, "mamba"),)))
    assert Model.open(path).rules is not None


def test_a_tilde_is_the_home_folder(own_home: Path) -> None:
    (own_home / "mine.gguf").write_bytes(gguf())
    assert Model.open("~/mine.gguf").path == own_home / "mine.gguf"
