"""Ghosts are served, warmed up and measured like the files that they stand for."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.ghosts import ghost as reference_ghost
from benchmarks.ghosts import grow
from planner import Hardware, Launch, Model, predict
from planner.engine.dry_run_server import server_dry_run
from planner.engine.find import Engine
from planner.engine.log import ROUNDING_BYTES
from planner.errors import EngineError
from planner.measure import Measurement, measure
from planner.model.architectures import DIFFUSION
from planner.model.catalogue import find_entry
from planner.model.ghost import temporary_ghost
from planner.model.ghost.entry import entry_header
from planner.model.ghost.hole import write_with_hole
from planner.model.ghost.pairs import integers_pair, texts_pair
from planner.model.ghost.vocabulary import _pieces

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("measuring")]

FOR_TWO = replace(Launch.for_users(2, 256), ubatch_size=64)
"""What llama-server does not serve, with weights or without: they guess all words at once."""


def assert_served(measurement: Measurement) -> None:
    assert measurement.ghost
    assert measurement.everyone.users == 2
    assert measurement.everyone.generated_tokens == 32
    assert measurement.everyone.generated_tokens_per_s > 0
    assert measurement.steady.resident_bytes is None or measurement.steady.resident_bytes > 0


@pytest.mark.parametrize("name", ["gemma", "smollm"])
def test_a_download_that_has_begun_reserves_what_the_model_does(
    name: str, engine: Engine, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model: Model = request.getfixturevalue(name)
    with model.path.open("rb") as file:
        (tmp_path / "part.gguf").write_bytes(file.read(model.header.data_offset))
    with temporary_ghost(Model.open(tmp_path / "part.gguf", header_only=True)) as ghost:
        made = measure(ghost, FOR_TWO, engine)
    assert_served(made)
    real = measure(model, FOR_TWO, engine)
    assert made.everyone.prompt_tokens == real.everyone.prompt_tokens
    assert [(buffer.kind, buffer.size_bytes) for buffer in made.log.buffers if buffer.kind != "model"] == [
        (buffer.kind, buffer.size_bytes) for buffer in real.log.buffers if buffer.kind != "model"
    ]
    for mine, its in zip(made.log.of_kind("model"), real.log.of_kind("model"), strict=True):
        assert abs(mine.size_bytes - its.size_bytes) <= ROUNDING_BYTES + 1


def test_every_kind_of_architecture_is_served(engine: Engine, shared: Path) -> None:
    """With the headers of llama.cpp's own test models, which have 128 tokens and no word."""
    headers = [path for path in sorted(shared.glob("archs/*.gguf")) if path.stem.rpartition("-")[0] not in DIFFUSION]
    assert len(headers) > 100
    for path in headers[::12]:
        with temporary_ghost(Model.open(path, header_only=True)) as ghost:
            assert_served(measure(ghost, FOR_TWO, engine))


def test_a_split_model_is_served_from_its_headers(engine: Engine, shared: Path, tmp_path: Path) -> None:
    whole = reference_ghost(shared, "llama-dense", tmp_path)
    first = grow(whole, tmp_path / "grown.gguf", layers=4, shards=3)
    model = Model.open(first)
    for part in tmp_path.glob("grown-*.gguf"):
        os.truncate(part, max(header.data_offset for header in (model.header, *model.further_headers)))
    with temporary_ghost(Model.open(first, header_only=True)) as ghost:
        assert len(list(ghost.path.parent.iterdir())) == 3
        measurement = measure(ghost, FOR_TWO, engine)
        assert_served(measurement)
        told = server_dry_run(Model.open(first, header_only=True), FOR_TWO, engine)
    weights = told.figure("weights", "CPU")
    assert weights is not None and weights.holds(ghost.tensor_bytes)
    kv = told.figure("kv", "CPU")
    assert kv is not None and kv.holds(measurement.log.buffer_bytes("kv") or 0)


def test_what_llama_server_does_not_serve_is_a_sentence(engine: Engine, shared: Path) -> None:
    model = Model.open(shared / "archs" / "dream-dense.gguf", header_only=True)
    assert model.architecture in DIFFUSION
    assert "diffusion" in " ".join(predict(model, FOR_TWO, Hardware.detect()).notes)
    with temporary_ghost(model) as ghost, pytest.raises(EngineError, match="does not support logits computation"):
        measure(ghost, FOR_TWO, engine)


def test_tokens_that_end_within_a_character_are_counted(engine: Engine, tmp_path: Path) -> None:
    """The first bytes of characters come first, so most answers end within one: llama-server holds them back."""
    entry = find_entry("smollm2-135m")
    leads = [f"<0x{byte:02X}>" for byte in range(0xE0, 0xF0)]
    others = [f"<0x{byte:02X}>" for byte in range(256) if not 0xE0 <= byte < 0xF0]
    pieces = [piece for piece, _ in zip(_pieces(), range(entry.vocabulary_size - 259), strict=False)]
    types = [6] * len(leads) + [1] * len(pieces) + [6] * len(others) + [2, 3, 3]
    header = entry_header(entry).with_pairs(
        {
            "tokenizer.ggml.tokens": texts_pair(
                "tokenizer.ggml.tokens", [*leads, *pieces, *others, "<unk>", "<s>", "</s>"]
            ),
            "tokenizer.ggml.token_type": integers_pair("tokenizer.ggml.token_type", types),
        }
    )
    path = tmp_path / "half.ghost.gguf"
    write_with_hole(path, header.encode(), header.data_bytes)
    assert_served(measure(Model.open(path), FOR_TWO, engine))
