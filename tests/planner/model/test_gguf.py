from __future__ import annotations

import csv
import io
import random
import struct
import tracemalloc
from pathlib import Path

import gguf as reference
import numpy as np
import pytest
from gguf_files import ARRAY, BOOL, F32, I32, LLAMA, STRING, U8, U32, U64, array, complete, gguf, text
from gguf_files import pair as metadata_pair
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import ModelError
from planner.model.gguf import GgufHeader, LongArray, parse_header, read_header
from planner.units import pad

MIB = 1024**2


def parse(data: bytes) -> GgufHeader:
    return parse_header(io.BytesIO(data).read, len(data), "it.gguf")


# Against another reader ------------------------------------------------------------------------------------


def assert_same(ours: GgufHeader, path: Path) -> None:
    theirs = reference.GGUFReader(path)
    assert ours.data_offset == theirs.data_offset
    assert ours.alignment == theirs.alignment
    assert [
        (tensor.name, tensor.shape, tensor.type.name.lower(), tensor.nbytes, ours.data_offset + tensor.offset)
        for tensor in ours.tensors
    ] == [
        (
            tensor.name,
            tuple(int(extent) for extent in tensor.shape),
            tensor.tensor_type.name.lower(),
            int(tensor.n_bytes),
            int(tensor.data_offset),
        )
        for tensor in theirs.tensors
    ]
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.metadata.keys() == fields.keys()
    for name, field in fields.items():
        value = ours.metadata[name]
        if isinstance(value, LongArray):
            assert value.length == len(field.data)
        elif isinstance(value, tuple):
            assert list(value) == field.contents()
        else:
            assert value == field.contents()


def test_a_real_model_reads_as_the_gguf_package_reads_it(smollm_path: Path) -> None:
    assert_same(read_header(smollm_path), smollm_path)


def test_headers_of_many_architectures_read_as_the_gguf_package_reads_them(shared: Path, tmp_path: Path) -> None:
    with (shared / "archs" / "index.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows[::8]:
        whole = tmp_path / row["file"]
        whole.write_bytes((shared / "archs" / row["file"]).read_bytes())
        with whole.open("r+b") as file_with_hole:
            file_with_hole.truncate(int(row["file_bytes"]))
        assert_same(read_header(whole), whole)


def test_the_sizes_of_every_architecture_are_those_of_its_file(shared: Path) -> None:
    with (shared / "archs" / "index.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 100
    for row in rows:
        header = read_header(shared / "archs" / row["file"])
        # Their writer pads the last tensor, too.
        assert pad(header.file_bytes, header.alignment) == int(row["file_bytes"]), row["file"]
        assert sum(tensor.nbytes for tensor in header.tensors) == int(row["tensor_bytes"]), row["file"]
        assert len(header.tensors) == int(row["tensors"]), row["file"]


def test_a_whole_file_is_as_long_as_its_header_says(gemma_path: Path, smollm_path: Path) -> None:
    for path in (gemma_path, smollm_path):
        assert read_header(path).file_bytes == path.stat().st_size


def test_gemma_s_header_says_what_the_model_card_says(gemma_path: Path) -> None:
    header = read_header(gemma_path)
    assert header.metadata["general.architecture"] == "gemma3"
    assert header.metadata["gemma3.attention.sliding_window"] == 512
    assert header.metadata["tokenizer.ggml.tokens"] == LongArray(262144)
    assert sum(tensor.nbytes for tensor in header.tensors) == 246_587_904
    assert sum(tensor.elements for tensor in header.tensors) == 268_098_176


# Values ----------------------------------------------------------------------------------------------------


def test_values_of_every_kind() -> None:
    header = parse(
        gguf(
            (
                ("small", U8, 255),
                ("negative", I32, -5),
                ("large", U64, 2**64 - 1),
                ("real", F32, 0.5),
                ("true", BOOL, True),
                ("words", STRING, "Grüße"),
                ("numbers", ARRAY, (U32, [1, 2, 3])),
                ("truths", ARRAY, (BOOL, [True, False])),
                ("texts", ARRAY, (STRING, ["a", ""])),
                ("nothing", ARRAY, (U32, [])),
            )
        )
    )
    assert header.metadata == {
        "small": 255,
        "negative": -5,
        "large": 2**64 - 1,
        "real": 0.5,
        "true": True,
        "words": "Grüße",
        "numbers": (1, 2, 3),
        "truths": (True, False),
        "texts": ("a", ""),
        "nothing": (),
    }


@pytest.mark.parametrize("length", [2048, 2049, 100_000])
def test_of_a_long_array_only_the_length_is_kept_and_what_follows_is_read(length: int) -> None:
    header = parse(
        gguf(
            (
                ("tokens", ARRAY, (STRING, ["ab" * (index % 7) for index in range(length)])),
                ("scores", ARRAY, (F32, [1.0] * length)),
                ("after", U32, 7),
            )
        )
    )
    kept = length <= 2048
    assert isinstance(header.metadata["tokens"], tuple if kept else LongArray)
    assert isinstance(header.metadata["scores"], tuple if kept else LongArray)
    assert header.metadata["after"] == 7


def test_text_that_is_no_utf_8_is_read_with_marks_in_its_place() -> None:
    assert parse(gguf((("name", STRING, b"\x02\0\0\0\0\0\0\0a\xff"),))).metadata["name"] == "a\N{REPLACEMENT CHARACTER}"


def test_the_data_section_starts_at_the_alignment_that_the_file_asks_for() -> None:
    pairs = (*LLAMA, ("general.alignment", U32, 4096))
    header = parse(gguf(pairs, (("a", (32,), 0, 0), ("b", (32,), 0, 4096))))
    assert header.data_offset == 4096
    assert header.file_bytes == 4096 + 4096 + 32 * 4


def test_version_2_is_read_like_version_3() -> None:
    assert parse(gguf(version=2)).metadata == parse(gguf(version=3)).metadata


# What is no GGUF that llama.cpp opens ----------------------------------------------------------------------


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"There is no file .*gone\.gguf\. Check the path\."):
        read_header(tmp_path / "gone.gguf")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is a folder\. Name the \.gguf file in it\."):
        read_header(tmp_path)


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.touch()
    with pytest.raises(ModelError, match=r"empty\.gguf is cut off inside its header: at byte 0 it needs 4 more"):
        read_header(path)


BAD_HEADERS = {
    "another format": (b"PK\x03\x04" + bytes(60), r"is not a GGUF file \(it starts with b'PK\\x03\\x04'"),
    "version 1": (gguf(version=1), r"is GGUF version 1, older than .* \(2 and 3\)\. Convert it"),
    "version 4": (gguf(version=4), r"is GGUF version 4, newer than .* Update this program\."),
    "version 0": (gguf(version=0), r"is GGUF version 0, older than"),
    "big-endian": (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "was written for big-endian machines"),
    "huge tensor count": (gguf(tensor_count=2**63), rf"is damaged: .* {2**63} tensors"),
    "huge metadata count": (gguf(metadata_count=2**63), rf"is damaged: .* announces {2**63} metadata keys"),
    "more keys than written": (gguf(metadata_count=10), "is cut off inside its header"),
    "huge string": (gguf((("name", STRING, struct.pack("<Q", 2**63)),)), "is cut off inside its header"),
    "huge key": (
        gguf(metadata_count=1)[:24] + struct.pack("<Q", 2**64 - 1) + bytes(99),
        "cut off inside its header",
    ),
    "huge array": (gguf((("it", ARRAY, struct.pack("<IQ", U32, 2**62)),)), "is cut off inside its header"),
    "huge array of texts": (gguf((("it", ARRAY, struct.pack("<IQ", STRING, 2**64 - 1)),)), "cut off inside"),
    "huge text in a long array": (
        gguf((("it", ARRAY, struct.pack("<IQ", STRING, 3000) + text("ok") + struct.pack("<Q", 2**64 - 1)),)),
        "is cut off inside its header",
    ),
    "array of arrays": (gguf((("it", ARRAY, struct.pack("<IQ", ARRAY, 1)),)), "array of value type 9"),
    "unknown value type": (gguf((("it", 99, b""),)), "uses value type 99, which GGUF does not have"),
    "key twice": (gguf((*LLAMA, LLAMA[0])), "has the key 'general.architecture' twice"),
    "tensor twice": (gguf(LLAMA, [("w", (32,), 0, 0)] * 2), "has the tensor 'w' twice"),
    "alignment 0": (gguf((*LLAMA, ("general.alignment", U32, 0))), "an alignment of 0, which is no power of two"),
    "alignment 48": (gguf((*LLAMA, ("general.alignment", U32, 48))), "an alignment of 48"),
    "alignment in words": (gguf((*LLAMA, ("general.alignment", STRING, "32"))), "an alignment of '32'"),
    "offset off the alignment": (gguf(LLAMA, [("w", (32,), 0, 16)]), "puts 'w' at 16, off the alignment of 32"),
    "five dimensions": (gguf(LLAMA, [("w", (1, 1, 1, 1, 1), 0, 0)]), "gives the tensor 'w' 5 dimensions"),
    "long tensor name": (gguf(LLAMA, [("w" * 64, (32,), 0, 0)]), "has a tensor name of 64 characters"),
    "unknown tensor type": (gguf(LLAMA, [("w", (32,), 250, 0)]), r"stores 'w' in tensor type 250, .* Update this"),
    "broken rows": (gguf(LLAMA, [("w", (48,), 8, 0)]), "rows of 48, not whole q8_0 blocks of 32"),
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_an_unreadable_header_says_what_is_wrong_with_it(case: str) -> None:
    data, message = BAD_HEADERS[case]
    with pytest.raises(ModelError, match=message) as caught:
        parse(data)
    assert str(caught.value).startswith("it.gguf ")


def test_a_file_that_shrinks_while_it_is_read_is_damaged() -> None:
    data = gguf()
    with pytest.raises(ModelError, match="ends before the size that the file system reports"):
        parse_header(io.BytesIO(data[:40]).read, len(data), "it.gguf")


# Lies cost nothing -----------------------------------------------------------------------------------------

LIES = {
    "string": metadata_pair("it", STRING, struct.pack("<Q", 2**32)),
    "string that memory could hold": metadata_pair("it", STRING, struct.pack("<Q", 200 * MIB)),
    "array of numbers": metadata_pair("it", ARRAY, struct.pack("<IQ", U64, 2**29)),
    "texts": metadata_pair("it", ARRAY, array(STRING, ["x"] * 3000)[:-9] + struct.pack("<Q", 2**32)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_length_costs_no_memory_in_a_file_that_is_long_enough_for_it(lie: str, tmp_path: Path) -> None:
    path = tmp_path / "hole.gguf"
    path.write_bytes(gguf((), metadata_count=1) + LIES[lie])
    with path.open("r+b") as file:
        file.truncate(8 * 1024 * MIB)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=r"is damaged: its header does not end within 67,108,864 bytes"):
            read_header(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * MIB


def test_a_vocabulary_is_walked_in_little_more_memory_than_its_header(gemma_path: Path) -> None:
    tracemalloc.start()
    try:
        header = read_header(gemma_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * header.data_offset


# Damage ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A whole model as the gguf package writes it."""
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    writer = reference.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_head_count([4, 4])
    writer.add_token_list([f"token {index}" for index in range(2100)])
    writer.add_token_scores([0.5] * 100)
    writer.add_chat_template("{{ messages }}")
    for name in ("token_embd.weight", "blk.0.attn_q.weight", "blk.1.attn_q.weight"):
        writer.add_tensor(name, np.zeros((32, 32), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


class Pipe:
    """Yields bytes and counts them."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)
        self.asked = 0

    def read(self, count: int) -> bytes:
        chunk = self._file.read(min(count, 4096))
        self.asked += len(chunk)
        return chunk


def assert_read_or_refused(data: bytes) -> None:
    pipe = Pipe(data)
    tracemalloc.start()
    try:
        header = parse_header(pipe.read, len(data), "it.gguf")
    except ModelError as error:
        assert str(error).startswith("it.gguf ")
    else:
        assert header.data_offset < len(data) + header.alignment
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1 * MIB + 8 * len(data)


@given(data=st.data())
def test_a_cut_header_is_refused_at_every_byte(small_model: bytes, data: st.DataObject) -> None:
    header_bytes = parse(small_model).data_offset
    length = data.draw(st.integers(0, header_bytes - 33))
    with pytest.raises(ModelError, match=r"is cut off inside its header|is damaged"):
        parse(small_model[:length])


@given(
    places=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8),
    near_the_start=st.booleans(),
)
def test_changed_bytes_are_read_or_refused_and_nothing_else(
    small_model: bytes, places: list[tuple[float, int]], near_the_start: bool
) -> None:
    reach = 400 if near_the_start else len(small_model)
    data = bytearray(small_model)
    for place, value in places:
        data[int(place * reach)] = value
    assert_read_or_refused(bytes(data))


@given(seed=st.integers(0, 2**32), count=st.integers(1, 3), kind=st.sampled_from(["insert", "delete", "length"]))
def test_moved_bytes_and_wild_lengths_are_read_or_refused_and_nothing_else(
    small_model: bytes, seed: int, count: int, kind: str
) -> None:
    chance = random.Random(seed)
    data = bytearray(small_model)
    for _ in range(count):
        place = chance.randrange(len(data) - 8)
        if kind == "insert":
            data[place:place] = chance.randbytes(chance.randint(1, 16))
        elif kind == "delete":
            del data[place : place + chance.randint(1, 16)]
        else:
            data[place : place + 8] = struct.pack("<Q", chance.getrandbits(chance.randint(1, 64)))
    assert_read_or_refused(bytes(data))


@given(data=st.binary(max_size=300))
def test_whatever_follows_the_magic_is_read_or_refused(data: bytes) -> None:
    assert_read_or_refused(b"GGUF\x03\0\0\0" + data)


def test_complete_files_made_here_are_complete() -> None:
    data = complete(LLAMA, [("w", (32, 2), 1, 0)], 128)
    assert parse(data).file_bytes == len(data)
