"""Ghosts of files keep every byte of the header that decides anything, and never fill a disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from gguf_files import BOOL, LLAMA, STRING, U32, complete, gguf
from test_shards import write

from planner import Model
from planner.errors import ModelError
from planner.model.catalogue import find_entry
from planner.model.discover import find_models
from planner.model.gguf import GgufHeader, LongArray
from planner.model.ghost import dry_file, hole, temporary_ghost, write_ghost
from planner.units import MIB

NAME = "general.name"
WORDS = ("tokens", "scores", "token_type")


def pairs(path: Path, header: GgufHeader) -> dict[str, bytes]:
    """Every pair of a file as its bytes."""
    data = path.read_bytes()[: header.data_offset]
    return {key: data[start:end] for key, (start, end) in header.pair_spans.items()}


def tensor_infos(path: Path, header: GgufHeader) -> bytes:
    start, end = header.tensors_span
    return path.read_bytes()[start:end]


def cut_off(model: Model, path: Path) -> Model:
    """The same model as a download that has only begun."""
    with model.path.open("rb") as file:
        path.write_bytes(file.read(model.header.data_offset + 100))
    return Model.open(path, header_only=True)


def small(path: Path, *, tokens: int = 512, further: tuple[tuple[str, int, object], ...] = ()) -> Model:
    """A llama without words, of one tensor."""
    rows = (("token_embd.weight", (64, tokens), 0, 0),)
    path.write_bytes(complete((*LLAMA, *further), rows, 64 * tokens * 4 + 256))
    return Model.open(path)


@pytest.fixture(params=["gemma", "smollm"])
def real(request: pytest.FixtureRequest) -> Model:
    """Each of the two real models."""
    model: Model = request.getfixturevalue(request.param)
    return model


def test_everything_but_the_name_is_kept_to_the_byte(real: Model) -> None:
    with temporary_ghost(real) as ghost:
        before, after = pairs(real.path, real.header), pairs(ghost.path, ghost.header)
        assert after.keys() - before.keys() == {"planner.ghost"}
        assert {key for key, data in before.items() if after[key] != data} == {NAME}
        assert list(after)[: len(before)] == list(before)
        assert tensor_infos(ghost.path, ghost.header) == tensor_infos(real.path, real.header)
        assert ghost.path.stat().st_size == ghost.header.file_bytes
        assert (ghost.name, ghost.is_ghost) == (f"{real.name} (ghost: no weights)", True)
        assert ghost.path.name == f"{real.path.stem}.ghost.gguf"
        assert ghost.stands_for == real.path


def test_a_download_that_has_begun_makes_the_same_ghost(gemma: Model, tmp_path: Path) -> None:
    with temporary_ghost(gemma) as whole, temporary_ghost(cut_off(gemma, tmp_path / "part.gguf")) as ghost:
        assert (
            ghost.path.read_bytes()[: ghost.header.data_offset] == whole.path.read_bytes()[: whole.header.data_offset]
        )
        assert ghost.path.stat().st_size == whole.path.stat().st_size
        assert ghost.stands_for is None


def test_a_split_model_has_a_ghost_for_each_file(tmp_path: Path) -> None:
    files = write(tmp_path / "split", rows=512)
    model = Model.open(files[1])
    with temporary_ghost(model) as ghost:
        names = [f"small.ghost-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
        assert sorted(path.name for path in ghost.path.parent.iterdir()) == names
        assert ghost.tensors == model.tensors
        assert ghost.metadata["split.count"] == 3
        assert ghost.stands_for == files[0]
        assert find_models([ghost.path.parent]) == ()
        os.truncate(files[2], Model.open(files[0]).further_headers[1].data_offset)
        cut = Model.open(files[0], header_only=True)
        with temporary_ghost(cut) as ghost_of_cut, dry_file(cut) as path:
            assert ghost_of_cut.tensors == Model.open(path).tensors == model.tensors
            assert ghost_of_cut.stands_for is None


def test_a_ghost_of_a_ghost_stands_for_nothing(smollm: Model) -> None:
    with temporary_ghost(smollm) as ghost, temporary_ghost(ghost) as second:
        assert second.is_ghost
        assert second.stands_for is None


def test_the_alignment_of_the_file_is_kept(tmp_path: Path) -> None:
    model = small(tmp_path / "a.gguf", further=(("general.alignment", U32, 256),))
    with temporary_ghost(model) as ghost:
        assert ghost.header.data_offset % 256 == 0
        assert ghost.tensors == model.tensors


# Vocabularies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [None, "none", "no_vocab", "test"])
def test_a_file_without_words_gets_as_many_as_it_has_tokens(tmp_path: Path, tokenizer: str | None) -> None:
    further = () if tokenizer is None else (("tokenizer.ggml.model", STRING, tokenizer),)
    with temporary_ghost(small(tmp_path / "a.gguf", tokens=4000, further=further)) as ghost:
        assert ghost.metadata["tokenizer.ggml.model"] == "llama"
        assert ghost.metadata["llama.vocab_size"] == 4000
        for name in WORDS:
            assert ghost.metadata[f"tokenizer.ggml.{name}"] == LongArray(4000)


@pytest.mark.parametrize("tokens", [99, 128, 353, 354, 1000])
def test_also_a_vocabulary_without_room_for_bytes_has_the_letters(tmp_path: Path, tokens: int) -> None:
    with temporary_ghost(small(tmp_path / "a.gguf", tokens=tokens)) as ghost:
        words = ghost.metadata["tokenizer.ggml.tokens"]
        assert isinstance(words, tuple)
        assert len(words) == len(set(words)) == tokens
        assert {*map(chr, range(ord("!"), ord("~") + 1)), "\u2581", "<0x0A>", "</s>"} <= {*map(str, words)}
        assert ("<0xFF>" in words) == (tokens >= 354)


def test_fewer_tokens_than_letters_are_refused(tmp_path: Path) -> None:
    model = small(tmp_path / "a.gguf", tokens=98)
    with pytest.raises(ModelError, match="98 tokens cannot be given a vocabulary"), temporary_ghost(model):
        pass


@pytest.mark.parametrize("tokens", [(1 << 21) + 1, (1 << 32) - 1])
def test_more_tokens_than_a_header_has_room_for_are_refused(tmp_path: Path, tokens: int) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf((*LLAMA, ("llama.vocab_size", U32, tokens)), (("token_embd.weight", (64, 512), 0, 0),)))
    model = Model.open(path, header_only=True)
    for ghost in (temporary_ghost, dry_file):
        with pytest.raises(ModelError, match=rf"claims to have {tokens:,} tokens"), ghost(model):
            pass


def test_a_dry_file_has_the_number_of_tokens_and_no_word(real: Model) -> None:
    with dry_file(real) as path:
        dry = Model.open(path)
        assert dry.is_ghost
        assert dry.tensors == real.tensors
        assert {key for key in dry.metadata if key.startswith("tokenizer.")} == {"tokenizer.ggml.model"}
        assert dry.metadata["tokenizer.ggml.model"] == "none"
        embedding = real.tensor("token_embd.weight")
        assert embedding is not None
        assert dry.metadata[f"{real.architecture}.vocab_size"] == embedding.shape[1]
        before, after = pairs(real.path, real.header), pairs(path, dry.header)
        kept = before.keys() & after.keys() - {NAME, "tokenizer.ggml.model", f"{real.architecture}.vocab_size"}
        assert all(before[key] == after[key] for key in kept)
        assert {key for key in before if not key.startswith("tokenizer.")} <= after.keys()
        assert dry.header.data_offset < 64 * 1024


def test_what_decides_a_tensor_s_shape_stays_in_a_dry_file(tmp_path: Path) -> None:
    key = "tokenizer.ggml.token_type_count"
    with dry_file(
        small(tmp_path / "a.gguf", further=((key, U32, 2), ("tokenizer.ggml.add_bos_token", BOOL, True)))
    ) as path:
        metadata = Model.open(path).metadata
        assert metadata[key] == 2
        assert "tokenizer.ggml.add_bos_token" not in metadata


# The disk ------------------------------------------------------------------------------------------------------


def large(folder: Path) -> Model:
    """A model of 16 GB that is only a header."""
    path = folder / "large.gguf"
    tensors = (("token_embd.weight", (64, 512), 0, 0), ("output.weight", (64, 62_500_000), 0, 131_072))
    path.write_bytes(gguf(LLAMA, tensors))
    return Model.open(path, header_only=True)


def split(folder: Path) -> Model:
    """A split model of which only the headers are there, the second one with a large hole."""
    first, second = (folder / f"s-0000{number}-of-00002.gguf" for number in (1, 2))
    shared = (("split.count", U32, 2), ("split.no", U32, 0))
    first.write_bytes(gguf((*LLAMA, *shared), (("token_embd.weight", (64, 512), 0, 0),)))
    second.write_bytes(gguf((("split.no", U32, 1),), (("output.weight", (64, 62_500_000), 0, 0),)))
    return Model.open(first, header_only=True)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A file system without holes; what files on it were extended to."""
    asked: list[int] = []
    make_hole = hole._make_hole

    def extend(path: Path, size: int) -> None:
        asked.append(size)
        make_hole(path, size)

    monkeypatch.setattr(hole, "_make_hole", extend)
    monkeypatch.setattr(hole, "_allocated_bytes", lambda path: path.stat().st_size)
    return asked


@pytest.mark.parametrize(
    ("ghost", "made"),
    [
        (temporary_ghost, large),
        (temporary_ghost, split),
        (temporary_ghost, lambda _: find_entry("smollm2-135m")),
        (dry_file, large),
        (dry_file, split),
    ],
    ids=["file", "split", "entry", "dry file", "dry split"],
)
def test_a_file_system_without_holes_is_refused_before_it_is_filled(
    tmp_path: Path, sizes: list[int], ghost: Callable[..., ExitStack], made: Callable[[Path], Model]
) -> None:
    source = made(tmp_path)
    folder = tmp_path / "ghosts"
    with (
        pytest.raises(ModelError, match=r"cannot leave holes.* of disk\. Use a directory on ext4.*XDG_CACHE_HOME"),
        ghost(source, folder),
    ):
        pytest.fail("a ghost was made")
    assert list(folder.iterdir()) == []
    assert max(sizes) <= 4 * MIB


def test_a_ghost_that_cannot_be_written_leaves_nothing(tmp_path: Path, sizes: list[int]) -> None:
    (tmp_path / "ghosts").mkdir()
    with pytest.raises(ModelError, match="cannot leave holes"):
        write_ghost(split(tmp_path), tmp_path / "ghosts")
    assert list((tmp_path / "ghosts").iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
def test_a_disk_that_takes_no_more_is_a_sentence(tmp_path: Path) -> None:
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, limits[1]))
    try:
        gemma = temporary_ghost(find_entry("gemma-3-270m"), tmp_path)
        with pytest.raises(ModelError, match=r"Cannot write the ghost .*: File too large"), gemma:
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_where_no_ghost_can_be_written_a_whole_file_stands_for_itself(
    tmp_path: Path, smollm: Model, sizes: list[int]
) -> None:
    with dry_file(smollm, tmp_path / "ghosts") as path:
        assert path == smollm.path
    assert list((tmp_path / "ghosts").iterdir()) == []
    (tmp_path / "file").touch()
    with dry_file(smollm, tmp_path / "file" / "below") as path:
        assert path == smollm.path
    with (
        pytest.raises(ModelError, match="Cannot make a folder"),
        dry_file(large(tmp_path), tmp_path / "file" / "below"),
    ):
        pass


def test_a_ghost_takes_its_header_of_the_disk(tmp_path: Path) -> None:
    with temporary_ghost(find_entry("gemma-3-270m"), tmp_path) as ghost, dry_file(large(tmp_path), tmp_path) as path:
        assert ghost.path.stat().st_blocks * 512 < ghost.header.data_offset + 64 * 1024
        assert path.stat().st_size > 16_000_000_000
        assert path.stat().st_blocks * 512 <= 64 * 1024


@pytest.mark.skipif(sys.platform != "linux" or not Path("/dev/shm").is_dir(), reason="no folder in memory here")
def test_a_ghost_is_not_run_in_memory(smollm: Model) -> None:
    folder = Path("/dev/shm") / f"planner-test-{os.getpid()}"
    try:
        with pytest.raises(ModelError, match="lies in memory"), temporary_ghost(smollm, folder):
            pass
        with dry_file(smollm, folder) as path:
            assert path.parent.parent == folder  # nothing of it is read
        assert list(folder.iterdir()) == []
    finally:
        folder.rmdir()


def test_a_file_that_went_away_is_a_sentence(tmp_path: Path) -> None:
    model = small(tmp_path / "a.gguf")
    model.path.unlink()
    for ghost in (temporary_ghost, dry_file):
        with pytest.raises(ModelError, match=r"a\.gguf cannot be read: No such file"), ghost(model):
            pass


def test_a_file_that_was_replaced_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    model = small(path)
    path.write_bytes(path.read_bytes().replace(b"llama.block_count", b"llama.block_kount"))
    with pytest.raises(ModelError, match=r"a\.gguf has changed since its header was read"), temporary_ghost(model):
        pass


def test_ghosts_of_programs_that_were_killed_are_swept_away(tmp_path: Path, smollm: Model) -> None:
    with temporary_ghost(smollm, tmp_path) as ghost:
        kind, place, pid, _ = ghost.path.parent.name.split(".")
    assert (kind, pid) == ("ghost", str(os.getpid()))
    dead, alive = tmp_path / f"ghost.{place}.4194305.abc", tmp_path / f"ghost.{place}.{os.getppid()}.abc"
    elsewhere = tmp_path / "ghost.00000000.4194305.abc"  # of a container whose processes are not seen here
    others = {tmp_path / "other", tmp_path / "a.4194305.b", elsewhere}
    for folder in (dead, alive, *others):
        folder.mkdir()
        (folder / "x.ghost.gguf").touch()
    with dry_file(smollm, tmp_path):
        assert not dead.exists()
    assert set(tmp_path.iterdir()) == {alive, *others}
