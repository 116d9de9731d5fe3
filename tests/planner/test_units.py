from __future__ import annotations

import pytest

from planner.errors import UsageError
from planner.units import GIB, MIB, format_bytes, format_mib, format_tokens, pad, parse_size


@pytest.mark.parametrize(("value", "padded"), [(0, 0), (1, 256), (256, 256), (257, 512), (5000, 5120)])
def test_pad_rounds_up_to_a_whole_multiple(value: int, padded: int) -> None:
    assert pad(value, 256) == padded


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 KiB"),
        (640 * 1024, "640 KiB"),
        (246_587_904, "235.2 MiB"),
        (int(15.8 * GIB), "15.8 GiB"),
        (-3 * MIB, "-3.0 MiB"),
    ],
)
def test_a_size_is_written_so_that_it_reads_at_a_glance(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_mib_are_written_as_llama_cpp_prints_them() -> None:
    assert format_mib(111 * MIB) == "111.00"
    assert format_mib(1440 * MIB + MIB // 4) == "1,440.25"


@pytest.mark.parametrize(
    ("count", "text"), [(512, "512"), (1024, "1k"), (32768, "32k"), (10000, "10,000"), (1000, "1,000")]
)
def test_a_context_is_written_as_people_write_it(count: int, text: str) -> None:
    assert format_tokens(count) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16G", 16 * GIB),
        ("512M", 512 * MIB),
        ("24GiB", 24 * GIB),
        ("24 GB", 24 * GIB),
        ("1.5g", 3 * GIB // 2),
        ("2T", 2048 * GIB),
        ("8k", 8192),
        (" 16777216 ", 16777216),
    ],
)
def test_a_size_is_read_as_people_write_it(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "16X", "1,5G", "16GG", "lots", "9" * 400 + "G"])
def test_what_is_no_size_is_quoted_with_the_way_out(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a size\. Write it like 16G or 512M\.") as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)


def test_a_bare_small_number_is_taken_for_a_forgotten_unit() -> None:
    with pytest.raises(UsageError, match="Did you mean 12G"):
        parse_size("12")
