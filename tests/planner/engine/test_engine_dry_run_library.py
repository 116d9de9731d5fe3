"""Dry runs by the library are what the same library reserves for real, and llama.cpp's aborts cost one answer."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from large_ghost import write_8b

from benchmarks.ghosts import ghost
from benchmarks.oracle import Oracle
from planner import Launch, Model
from planner.engine import dry_run_library
from planner.engine.dry_run import DryRun, DryRunCache, Library, dry_run, library_is_here
from planner.engine.library_process import LibraryProcess
from planner.errors import EngineError, ModelError
from planner.memory import Component
from planner.units import MIB

pytestmark = [
    pytest.mark.xdist_group("oracle"),
    pytest.mark.skipif(not library_is_here(), reason="llama-cpp-python is not installed"),
]

BASE = Launch(ctx_size=8192, parallel=2, kv_unified=False)
LAUNCHES = (
    BASE,
    Launch(),
    replace(BASE, ctx_size=2048, flash_attn="off"),
    replace(BASE, ctx_size=1024, embeddings=True, ubatch_size=128),
    replace(BASE, parallel=4, kv_unified=True, ubatch_size=1024),
    replace(BASE, swa_full=True, cache_type_k="q8_0", cache_type_v="q4_0"),
)
SEEN_LATER = ("minimax-01-moe",)
"""Where a dry run counts less than a real context: llama.cpp measures its first pass only."""


def printed(answer: DryRun, component: Component) -> str:
    """The figure as llama.cpp prints it."""
    figure = answer.figure(component, "CPU")
    return "0.00" if figure is None else f"{figure.size_bytes / MIB:.2f}"


def assert_equal_to_real(library: Library, oracle: Oracle, model: Model, launches: tuple[Launch, ...]) -> None:
    for launch, real in zip(launches, oracle.loads(model.path, launches), strict=True):
        answer = library.dry_run(model, launch)
        assert bool(answer.refusal) == bool(real.refusal), launch
        if not answer.refusal:
            for component in ("kv", "state", "compute", "output"):
                reserved = real.log.buffer_bytes(component) or 0
                figure = answer.figure(component, "CPU")
                assert figure is None or figure.holds(reserved), (model.path.stem, component, launch)
                assert figure is not None or not reserved


@pytest.mark.parametrize("name", ["gemma", "smollm"])
def test_it_is_what_a_real_context_reserves(name: str, request: pytest.FixtureRequest) -> None:
    with Library() as library, Oracle() as oracle:
        assert_equal_to_real(library, oracle, request.getfixturevalue(name), LAUNCHES)


def test_it_is_so_for_every_architecture(shared: Path, tmp_path: Path) -> None:
    launches = (BASE, replace(BASE, parallel=3, kv_unified=True, ubatch_size=256, flash_attn="off"))
    headers = [path.stem for path in sorted(shared.glob("archs/*.gguf")) if path.stem not in SEEN_LATER]
    assert len(headers) > 100
    with Library() as library, Oracle() as oracle:
        for name in headers[::4]:
            path = ghost(shared, name, tmp_path)
            assert_equal_to_real(library, oracle, Model.open(path), launches)
            path.unlink()


def test_a_ghost_of_an_8b_takes_little_memory(tmp_path: Path, own_home: Path) -> None:
    cut = Model.open(write_8b(tmp_path / "cut.gguf", whole=False), header_only=True)
    whole = Model.open(write_8b(tmp_path / "whole.gguf"))
    with Library() as library:
        answer = library.dry_run(whole, BASE)
        assert printed(answer, "kv") == "1024.00"
        assert library.pid is not None
        assert psutil.Process(library.pid).memory_info().rss < 300 * MIB
        assert library.dry_run(cut, BASE) == answer
        assert len(list(own_home.rglob("cut.ghost.gguf"))) == 1
        for slots in range(1, 21):
            library.dry_run(cut, replace(BASE, parallel=slots))
    assert list(own_home.rglob("cut.ghost.gguf")) == []


def test_an_abort_costs_one_answer(shared: Path, tmp_path: Path, smollm: Model) -> None:
    aborting = Model.open(ghost(shared, "kimi-linear-moe", tmp_path))
    with Library() as library:
        before = library.dry_run(smollm, BASE)
        with pytest.raises(EngineError, match=r"llama-cpp-python died of SIGABRT: .*GGML_ASSERT"):
            library.dry_run(aborting, replace(BASE, parallel=3))
        assert library.pid is None
        assert library.dry_run(smollm, BASE) == before


def test_a_refusal_is_an_answer_in_its_own_words(smollm: Model) -> None:
    with Library() as library:
        refused = library.dry_run(smollm, replace(BASE, flash_attn="off", cache_type_v="q8_0"))
        assert "quantized V cache requires flash_attn" in refused.refusal
        assert library.dry_run(smollm, BASE).refusal == ""
        assert "has no device CUDA7" in library.dry_run(smollm, replace(BASE, device="CUDA7")).refusal


def test_nothing_is_started_for_what_was_answered(tmp_path: Path, smollm: Model) -> None:
    path = tmp_path / "answers.jsonl"
    with Library() as library:
        answer = dry_run(smollm, BASE, library, cache=DryRunCache(path))
        assert library.pid is not None
    with Library() as library:
        assert dry_run(smollm, BASE, library, cache=DryRunCache(path)) == answer
        assert library.pid is None


def test_no_process_is_left(smollm: Model) -> None:
    with Library() as library:
        library.dry_run(smollm, BASE)
        assert library.pid is not None
        child = psutil.Process(library.pid)
    assert not child.is_running()
    library.close()


def test_guessing_ahead_is_for_a_server(smollm: Model) -> None:
    with Library() as library, pytest.raises(EngineError, match="Ask a llama-server"):
        library.dry_run(smollm, replace(BASE, spec_type="draft-mtp"))


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run_library, "_PACKAGE", "no_such_package_anywhere")
    with pytest.raises(EngineError, match="llama-cpp-python is not installed"):
        Library()


@pytest.mark.parametrize(
    ("program", "timeout_s", "sentence"),
    [
        ("import time; time.sleep(60)", 0.5, "gave no answer within 0.5 seconds"),
        ("raise SystemExit('error: no library')", 30, 'ended with exit code 1. It said: "error: no library"'),
        ("import os; os.kill(os.getpid(), 9)", 30, "died of SIGKILL"),
    ],
)
def test_a_child_that_gives_no_answer_is_a_sentence(
    smollm: Model, program: str, timeout_s: float, sentence: str
) -> None:
    with (
        LibraryProcess((sys.executable, "-c", program), timeout_s=timeout_s) as process,
        pytest.raises(EngineError, match=sentence.replace(".", r"\.")),
    ):
        process.ask(smollm.path, BASE, dry=True)
    assert process.pid is None


def test_a_child_that_cannot_be_started_is_a_sentence(tmp_path: Path, smollm: Model) -> None:
    with LibraryProcess((str(tmp_path / "none"),)) as process, pytest.raises(EngineError, match="cannot be started"):
        process.ask(smollm.path, BASE, dry=True)


def test_a_model_that_went_away_is_a_sentence(tmp_path: Path) -> None:
    model = Model.open(write_8b(tmp_path / "8b.gguf"))
    with Library() as library:
        answer = library.dry_run(model, BASE)
        model.path.unlink()
        assert library.dry_run(model, BASE) == answer  # its ghost is still there
    with Library() as library, pytest.raises(ModelError, match="cannot be read"):
        library.dry_run(model, BASE)
