"""The smoke test: one token, once per engine."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engines import write_engine

from planner import Model
from planner.engine.faults import EngineFault
from planner.engine.find import Engine, identify
from planner.engine.smoke import smoke_test
from planner.engine.smoke_model import write_smoke_model


def test_the_model_is_one_that_can_be_read(tmp_path: Path) -> None:
    model = Model.open(write_smoke_model(tmp_path / "smoke.gguf"))
    assert (model.architecture, model.hyperparameters.n_layer_all) == ("llama", 1)
    assert {tensor.type.name for tensor in model.tensors} >= {"f16", "q4_0", "q4_K", "q8_0"}
    assert model.path.stat().st_size < 1 << 20


@pytest.mark.engine
def test_the_real_engine_decodes_a_token_and_is_believed_from_then_on(engine: Engine, tmp_path: Path) -> None:
    kept = tmp_path / "cache" / "engines.jsonl"
    smoke_test(engine, kept=kept)
    assert len(kept.read_text().split("\n")) == 3
    assert sorted(path.name for path in kept.parent.iterdir()) == ["engines.jsonl", "smoke-test-model"]
    before = kept.stat()
    smoke_test(engine, kept=kept)
    assert kept.stat() == before
    kept.write_text(kept.read_text()[:40])  # as a kill would leave it
    smoke_test(engine, kept=kept)
    assert kept.read_text().count("mtime_ns") == 1


def test_one_that_dies_at_the_first_token_is_told_so_and_tried_again(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    serve = f"echo started >>{trace}; kill -ILL $$"
    engine = identify(write_engine(tmp_path / "llama-server", serve=serve), "option")
    for attempt in (1, 2):
        with pytest.raises(EngineFault, match=r"died of SIGILL: .* does not work on this machine\.") as fault:
            smoke_test(engine, kept=tmp_path / "engines.jsonl")
        assert fault.value.kind == "instruction"
        assert fault.value.hint == "Use a build for this processor (--engine PATH)."
        assert trace.read_text() == "started\n" * attempt


@pytest.mark.engine
def test_another_file_in_its_place_is_tried_anew(tmp_path: Path, engine: Engine) -> None:
    """The same path, of another time: what worked before says nothing of it."""
    kept = tmp_path / "engines.jsonl"
    link = tmp_path / "llama-server"
    write_engine(link, serve="exit 3")
    broken = identify(link, "option")
    smoke_test(replace(broken, path=engine.path), kept=kept)
    with pytest.raises(EngineFault, match="exit code 3"):
        smoke_test(broken, kept=kept)
    os.utime(link, (time.time() + 5, time.time() + 5))
    with pytest.raises(EngineFault, match="exit code 3"):
        smoke_test(broken, kept=kept)


@pytest.mark.engine
def test_a_cache_that_cannot_be_written_only_costs_time(engine: Engine) -> None:
    smoke_test(engine, kept=Path("/proc/nowhere/engines.jsonl"))
