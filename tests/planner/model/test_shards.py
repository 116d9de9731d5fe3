"""Split models, written by gguf's own writer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from gguf import GGUFWriter

from planner import Hardware, Launch, Model, Verdict, predict
from planner.errors import ModelError
from planner.units import GIB

NAMES = [f"small-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
TENSORS = ["token_embd.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight", "blk.0.ffn_up.weight", "output.weight"]


def write(
    folder: Path, *, tensors: list[str] = TENSORS, per_file: int = 2, name: str = "small", rows: int = 32
) -> list[Path]:
    """A llama of one layer in files of so many tensors; 0 for one file."""
    folder.mkdir(exist_ok=True)
    writer = GGUFWriter(folder / f"{name}.gguf", "llama", split_max_tensors=per_file)
    writer.add_name(name)
    writer.add_context_length(4096)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_head_count(4)
    for number, tensor in enumerate(tensors):
        writer.add_tensor(tensor, numpy.zeros((rows + number, 64), numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob(f"{name}*.gguf"))


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    files = write(tmp_path / "split")
    assert [file.name for file in files] == NAMES
    return files


def refusal(path: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        Model.open(path)
    return caught.value


@pytest.mark.parametrize("number", [0, 1, 2])
def test_any_part_opens_the_whole_model(shards: list[Path], number: int) -> None:
    model = Model.open(shards[number])
    assert model.path == shards[0]
    assert (model.name, model.architecture) == ("small", "llama")
    assert [tensor.name for tensor in model.tensors] == TENSORS
    assert [tensor.shard for tensor in model.tensors] == [0, 0, 1, 1, 2]


def test_a_folder_stands_for_the_model_in_it(shards: list[Path]) -> None:
    (shards[0].parent / "mmproj-small.gguf").write_bytes(b"a projector is no model of its own")
    assert Model.open(shards[0].parent).path == shards[0]
    assert len(Model.open(shards[0].parent).tensors) == 5


def test_a_folder_with_one_file_stands_for_it(tmp_path: Path) -> None:
    [file] = write(tmp_path / "whole", per_file=0)
    assert Model.open(tmp_path / "whole").path == file


def test_a_split_model_takes_what_the_whole_one_takes(shards: list[Path], tmp_path: Path) -> None:
    [file] = write(tmp_path / "whole", per_file=0)
    split, whole = Model.open(shards[0]), Model.open(file)
    assert (split.tensor_bytes, split.parameters) == (whole.tensor_bytes, whole.parameters)
    assert split.layout == whole.layout
    machine = Hardware.simulate(ram=GIB)
    copied = Launch(ctx_size=4096, parallel=1, load_mode="none")
    assert predict(split, copied, machine).allocations == predict(whole, copied, machine).allocations


def test_each_file_is_mapped_from_its_first_to_its_last_tensor(shards: list[Path]) -> None:
    model = Model.open(shards[1])
    assert model.spans(model.tensors) == [(0, 32 * 256 + 33 * 256), (0, 34 * 256 + 35 * 256), (0, 36 * 256)]
    [weights] = [
        a for a in predict(model, Launch(), Hardware.simulate(ram=GIB)).allocations if a.component == "weights"
    ]
    assert weights.buffer == "CPU_Mapped"
    assert weights.reserved_bytes == model.tensor_bytes
    assert "in each of 3 files" in weights.reason


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_part_that_is_missing_is_named(shards: list[Path], gone: int) -> None:
    shards[gone].unlink()
    opened = next(file for file in shards if file.exists())
    error = refusal(opened)
    assert error.message == f"The model is split into 3 files, and {NAMES[gone]} is not beside {opened.name}."
    assert error.hint == "Finish the download."
    assert refusal(opened.parent).message == error.message


def test_parts_that_are_missing_are_all_named(shards: list[Path]) -> None:
    for file in shards[:2]:
        file.unlink()
    assert f"{NAMES[0]}, {NAMES[1]} are not beside {NAMES[2]}" in refusal(shards[2]).message


def test_a_part_of_another_model_is_noticed_by_its_tensors(shards: list[Path], tmp_path: Path) -> None:
    others = write(tmp_path / "other", tensors=[*TENSORS, "output_norm.weight"], per_file=2)
    others[2].replace(shards[2])
    error = refusal(shards[0])
    assert error.message == f"The 3 parts of {shards[0]} hold 6 tensors and not the 5 that they announce."
    assert "another model" in error.hint


def test_a_tensor_that_two_parts_hold_tells_of_another_model(shards: list[Path], tmp_path: Path) -> None:
    others = write(tmp_path / "other", tensors=[*TENSORS[3:], *TENSORS[:3]])
    others[2].replace(shards[2])
    error = refusal(shards[0])
    assert error.message == f"The tensor blk.0.attn_v.weight is in more than one of the 3 parts of {shards[0]}."
    assert "another model" in error.hint


def test_parts_that_changed_names_are_noticed_by_their_numbers(shards: list[Path]) -> None:
    aside = shards[1].rename(shards[1].with_name("aside"))
    shards[2].rename(shards[1])
    aside.rename(shards[2])
    assert refusal(shards[0]).message == f"{shards[1]} is part 2 by its name and part 3 by what it says."


def test_a_part_whose_name_has_no_numbers_cannot_find_the_others(shards: list[Path]) -> None:
    renamed = shards[0].rename(shards[0].with_name("small.gguf"))
    error = refusal(renamed)
    assert error.message == (f"{renamed} is part of a model split into 3 files, and its name does not say which part.")
    assert error.hint == "llama.cpp finds the others by name: call it PREFIX-00001-of-00003.gguf and so on."


def test_a_part_whose_name_counts_otherwise_cannot_find_the_others(shards: list[Path]) -> None:
    renamed = shards[0].rename(shards[0].with_name("small-00001-of-00004.gguf"))
    assert "its name does not say which part" in refusal(renamed).message


def test_a_part_that_is_cut_off_says_how_much_is_missing(shards: list[Path]) -> None:
    whole = shards[1].stat().st_size
    shards[1].write_bytes(shards[1].read_bytes()[:-100])
    assert refusal(shards[0]).message == (
        f"{shards[1]} is cut off: its tensors need {whole:,} bytes and the file has {whole - 100:,} (100 missing)."
    )
    assert Model.open(shards[0], header_only=True).tensor_bytes > 0


def test_a_part_that_is_damaged_is_named(shards: list[Path]) -> None:
    shards[2].write_bytes(b"nothing of the kind")
    assert str(shards[2]) in refusal(shards[0]).message


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (lambda folder: None, "holds no GGUF file"),
        (lambda folder: (folder / "mmproj-x.gguf").touch(), "holds no GGUF file"),
        (
            lambda folder: [write(folder, name=name, per_file=per_file) for name, per_file in (("a", 0), ("b", 2))],
            "holds 2 models (a.gguf, b-00001-of-00003.gguf)",
        ),
    ],
    ids=["empty", "a projector", "two models"],
)
def test_a_folder_that_does_not_hold_one_model_asks_for_a_file(
    tmp_path: Path, fill: Callable[[Path], object], said: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    fill(folder)
    error = refusal(folder)
    assert error.message == f"The folder {folder} {said}."
    assert error.hint == "Name the .gguf file to open."


def test_parts_of_one_model_without_the_first_name_it(shards: list[Path]) -> None:
    folder = shards[0].parent
    shards[0].unlink()
    shards[2].unlink()
    assert f"{NAMES[0]}, {NAMES[2]} are not beside {NAMES[1]}" in refusal(folder).message


def test_a_whole_model_has_a_plan(shards: list[Path]) -> None:
    assert predict(Model.open(shards[2]), Launch(), Hardware.simulate(ram=64 * GIB)).verdict is Verdict.FITS


def test_a_part_that_is_replaced_or_gone_is_noticed(shards: list[Path]) -> None:
    model = Model.open(shards[1])
    model.check_same_files()
    (other := shards[2].with_name("other")).write_bytes(shards[2].read_bytes())
    other.rename(shards[2])
    with pytest.raises(ModelError, match=r"small-00003-of-00003\.gguf was replaced since it was read"):
        model.check_same_files()
    Model.open(shards[1]).check_same_files()
    shards[1].unlink()
    with pytest.raises(ModelError, match=r"small-00002-of-00003\.gguf is gone \(No such file or directory\)"):
        model.check_same_files()
