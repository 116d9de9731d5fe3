"""Answers are found again under the same model, build and launch, and a damaged cache is as good as none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from large_ghost import write_8b

from planner import Launch, Model
from planner.engine.dry_figures import DryFigure, DryRun, summed
from planner.engine.dry_run_cache import DryRunCache, answer_key, default_path
from planner.model.fingerprint import fingerprint

LAUNCH = Launch(ctx_size=4096, parallel=1)
FIGURE = DryFigure(device="CPU", components=("kv", "state"), size_bytes=5, low_bytes=4, high_bytes=6)
ANSWER = DryRun(way="llama-server", build="abc", figures=(FIGURE,))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file in a folder that is not there yet."""
    return tmp_path / "cache" / "answers.jsonl"


def test_an_answer_is_found_in_the_next_run(path: Path) -> None:
    cache = DryRunCache(path)
    assert cache.get("key") is None
    cache.put("key", ANSWER)
    assert cache.get("key") == DryRunCache(path).get("key") == ANSWER


def test_a_refusal_is_forgotten_with_the_run(path: Path) -> None:
    cache = DryRunCache(path)
    cache.put("key", DryRun(way="llama-server", build="abc", refusal="no"))
    assert cache.get("key") is not None
    assert DryRunCache(path).get("key") is None


@pytest.mark.parametrize(
    "damage", [b"\x00\xff", b'{"version":1', b'{"version":1,"key":"key","answer":{}}', b"[]", b"7"]
)
def test_damaged_lines_cost_themselves(path: Path, damage: bytes) -> None:
    DryRunCache(path).put("first", ANSWER)
    path.write_bytes(path.read_bytes() + damage)
    DryRunCache(path).put("second", ANSWER)
    again = DryRunCache(path)
    assert (again.get("first"), again.get("second"), again.get("key")) == (ANSWER, ANSWER, None)


def test_a_place_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = DryRunCache(tmp_path / "file" / "answers.jsonl")
    cache.put("key", ANSWER)
    assert cache.get("key") == ANSWER


def test_a_file_that_grew_large_is_begun_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.engine.dry_run_cache._MOST_BYTES", 100)
    cache = DryRunCache(path)
    for number in range(50):
        cache.put(str(number), ANSWER)
    assert path.stat().st_size < 1000


def test_the_persons_cache_is_the_default(own_home: Path) -> None:
    assert default_path().is_relative_to(own_home)


def test_model_build_and_launch_are_what_an_answer_is_kept_under(tmp_path: Path, gemma: Model, smollm: Model) -> None:
    keys = {
        answer_key(smollm, "a", LAUNCH),
        answer_key(smollm, "b", LAUNCH),
        answer_key(gemma, "a", LAUNCH),
        answer_key(smollm, "a", replace(LAUNCH, ubatch_size=256)),
    }
    assert len(keys) == 4
    whole, cut = write_8b(tmp_path / "a.gguf"), write_8b(tmp_path / "b.gguf", whole=False)
    cut_off = Model.open(cut, header_only=True)
    assert answer_key(Model.open(whole), "a", LAUNCH) == answer_key(cut_off, "a", LAUNCH)


def test_a_hyperparameter_that_shows_in_no_tensor_is_part_of_it(smollm: Model) -> None:
    metadata = {**smollm.metadata, "llama.context_length": 4096}
    other = Model(path=smollm.path, header=replace(smollm.header, metadata=metadata))
    assert fingerprint(other) == fingerprint(smollm)
    assert answer_key(other, "a", LAUNCH) != answer_key(smollm, "a", LAUNCH)


def test_figures_of_one_kind_are_summed_with_their_rounding() -> None:
    other = replace(FIGURE, device="CUDA0")
    assert summed((FIGURE, other, FIGURE)) == (replace(FIGURE, size_bytes=10, low_bytes=8, high_bytes=12), other)
