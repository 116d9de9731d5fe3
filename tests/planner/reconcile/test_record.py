"""The record: what was measured stays, and what was learned is found again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from planner import MemoryPlan, Model
from planner.errors import PlannerError
from planner.measure import Measurement
from planner.model.fingerprint import fingerprint
from planner.reconcile.reconciliation import Reconciliation, reconcile
from planner.reconcile.record import DATA_VARIABLE, Record, default_folder


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "deep" / "inside")


@pytest.fixture
def run(plan: MemoryPlan, measured: Callable[..., Measurement]) -> Callable[..., Reconciliation]:
    """A run that taught this overhead."""

    def make(overhead_bytes: int | None, build: str = "0abc123") -> Reconciliation:
        reconciliation = reconcile(plan, measured(plan, engine_build=build))
        return replace(reconciliation, learned_overhead_bytes=overhead_bytes)

    return make


Run = Callable[..., Reconciliation]


def test_nothing_is_known_before_the_first_run(record: Record, gemma: Model) -> None:
    assert record.learned_overhead(gemma, None) is None
    assert not record.folder.exists()


def test_the_latest_run_is_believed(record: Record, gemma: Model, run: Run) -> None:
    for overhead in (10, 30, 20):
        record.append(gemma, run(overhead), {"n": overhead})
    assert record.learned_overhead(gemma, "0abc123") == 20
    assert [json.loads(line)["run"]["n"] for line in record.path.read_text().splitlines()] == [10, 30, 20]


def test_each_model_and_engine_has_its_own(record: Record, gemma: Model, smollm: Model, run: Run) -> None:
    record.append(gemma, run(10, "aaaaaaa"), {})
    record.append(gemma, run(20, "bbbbbbb"), {})
    record.append(smollm, run(30, "bbbbbbb"), {})
    assert record.learned_overhead(gemma, "aaaaaaa") == 10
    assert record.learned_overhead(gemma, "bbbbbbb") == 20
    assert record.learned_overhead(gemma, None) == 20
    assert record.learned_overhead(smollm, None) == 30
    assert record.learned_overhead(smollm, "aaaaaaa") is None


def test_a_run_that_taught_nothing_takes_nothing_away(record: Record, gemma: Model, run: Run) -> None:
    record.append(gemma, run(10), {})
    record.append(gemma, run(None), {})
    assert record.learned_overhead(gemma, None) == 10


def test_a_model_is_known_again_wherever_it_lies(gemma: Model, smollm: Model, tmp_path: Path) -> None:
    moved = replace(gemma, path=tmp_path / "elsewhere.gguf")
    assert fingerprint(moved) == fingerprint(gemma)
    assert fingerprint(smollm) != fingerprint(gemma)
    assert fingerprint(gemma) == "76c3124201d14970"  # records of years ago are kept under it


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_line_that_was_cut_off_costs_itself_only(record: Record, gemma: Model, run: Run, cut: int) -> None:
    record.append(gemma, run(10), {"text": "x" * 300})
    record.append(gemma, run(20), {"text": "x" * 300})
    record.path.write_bytes(record.path.read_bytes()[:-cut])
    whole = 20 if cut == 1 else 10  # without its newline the line is whole still
    assert record.learned_overhead(gemma, None) == whole
    record.append(gemma, run(30), {})
    assert record.learned_overhead(gemma, None) == 30
    lines = record.path.read_bytes().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[2])["overhead_bytes"] == 30


@pytest.mark.parametrize(
    "line",
    [
        b'{"schema_version": 2, "model": "%s", "overhead_bytes": 99}',
        b'{"model": "%s", "overhead_bytes": 99}',
        b'{"schema_version": 1, "model": "%s", "overhead_bytes": "99"}',
        b'["%s"]',
        b"",
        b"\xff\xfe\x00",
        b"null",
    ],
)
def test_lines_that_are_not_understood_are_passed_over(record: Record, gemma: Model, run: Run, line: bytes) -> None:
    record.append(gemma, run(10), {})
    with record.path.open("ab") as file:
        file.write(line.replace(b"%s", fingerprint(gemma).encode()) + b"\n")
    assert record.learned_overhead(gemma, None) == 10


def test_a_folder_that_cannot_be_written_is_a_sentence(gemma: Model, run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    record = Record(tmp_path / "file" / "below")
    with pytest.raises(PlannerError, match=r"cannot be kept in .*: Not a directory") as error:
        record.append(gemma, run(10), {})
    assert DATA_VARIABLE in error.value.hint
    with pytest.raises(PlannerError, match="cannot be kept"):
        record.check_writable()


def test_asking_whether_it_can_be_written_changes_nothing(record: Record, gemma: Model, run: Run) -> None:
    record.check_writable()
    record.append(gemma, run(10), {})
    before = record.path.read_bytes()
    record.check_writable()
    assert record.path.read_bytes() == before


def test_its_folder_can_be_named(monkeypatch: pytest.MonkeyPatch, own_home: Path, tmp_path: Path) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "mine"))
    assert default_folder() == tmp_path / "mine"
    monkeypatch.delenv(DATA_VARIABLE)
    assert default_folder().is_relative_to(own_home)
    assert default_folder().name == "planner"
