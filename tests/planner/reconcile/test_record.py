"""The record: what was measured stays, with its log, and what was learned is found again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from planner import Hardware, MemoryPlan, Model
from planner.errors import PlannerError
from planner.export.documents import run_document
from planner.measure import Measurement
from planner.memory import NOTHING_LEARNED, LearnedSize
from planner.model.fingerprint import fingerprint
from planner.reconcile.lessons import Lessons
from planner.reconcile.reconciliation import Reconciliation, reconcile
from planner.reconcile.record import BODY_START, DATA_VARIABLE, Record, default_folder

MACHINE = Hardware.simulate(ram=16 << 30)


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "deep" / "inside")


@pytest.fixture
def run(plan: MemoryPlan, measured: Callable[..., Measurement]) -> Callable[..., Reconciliation]:
    """A run that taught this overhead."""

    def make(overhead_bytes: int | None, build: str = "0abc123", log: str = "") -> Reconciliation:
        reconciliation = reconcile(plan, measured(plan, engine_build=build))
        measurement = replace(reconciliation.measurement, log_text=log)
        return replace(reconciliation, measurement=measurement, lessons=Lessons(overhead_bytes=overhead_bytes))

    return make


Run = Callable[..., Reconciliation]


def overhead(record: Record, model: Model, build: str | None = None) -> int | None:
    """What is known of the model on the processor alone."""
    size = record.learned(model, MACHINE, build).overhead.get(())
    return None if size is None else size.size_bytes


def test_nothing_is_known_before_the_first_run(record: Record, gemma: Model) -> None:
    assert record.learned(gemma, MACHINE) == NOTHING_LEARNED
    assert record.history().runs == ()
    assert not record.folder.exists()


def test_the_latest_run_is_believed_and_named(record: Record, gemma: Model, run: Run) -> None:
    ids = [record.append(gemma, run(size), {"n": size}) for size in (10, 30, 20)]
    assert record.learned(gemma, MACHINE, "0abc123").overhead == {(): LearnedSize(20, ids[-1])}
    assert [kept.id for kept in record.history().runs] == ids
    assert [document["n"] for _, document, _ in record.bodies()] == [10, 30, 20]


def test_each_model_and_engine_has_its_own(record: Record, gemma: Model, smollm: Model, run: Run) -> None:
    record.append(gemma, run(10, "aaaaaaa"), {})
    record.append(gemma, run(20, "bbbbbbb"), {})
    record.append(smollm, run(30, "bbbbbbb"), {})
    assert overhead(record, gemma, "aaaaaaa") == 10
    assert overhead(record, gemma, "bbbbbbb") == 20
    assert overhead(record, gemma) == 20
    assert overhead(record, smollm) == 30
    assert overhead(record, smollm, "aaaaaaa") is None


def test_a_run_that_taught_nothing_takes_nothing_away(record: Record, gemma: Model, run: Run) -> None:
    record.append(gemma, run(10), {})
    record.append(gemma, run(None), {})
    assert overhead(record, gemma) == 10


def test_what_a_run_taught_can_be_taken_back(record: Record, gemma: Model, run: Run) -> None:
    record.append(gemma, run(10), {})
    wrong = record.append(gemma, run(99), {})
    record.forget(record.find(wrong))
    assert overhead(record, gemma) == 10
    assert [kept.forgotten for kept in record.history().runs] == [False, True]
    assert record.body(record.find(wrong)) == ({}, "")  # the run itself stays


def test_a_run_is_kept_whole_with_its_log(record: Record, gemma: Model, run: Run) -> None:
    reconciliation = run(10, log="one\ntwo \x1b[0m ü\n")
    document = json.loads(json.dumps(run_document(reconciliation)))
    kept = record.append(gemma, reconciliation, document)
    assert record.body(record.find(kept)) == (document, "one\ntwo \x1b[0m ü\n")


def test_a_run_is_found_by_the_beginning_of_its_id(record: Record, gemma: Model, run: Run) -> None:
    ids = [record.append(gemma, run(size), {}) for size in range(1, 40)]
    assert {record.find(one.upper()).id for one in ids} == set(ids)
    with pytest.raises(PlannerError, match="No run in the record begins with 'xyz'"):
        record.find("xyz")
    with pytest.raises(PlannerError, match="39 runs begin with ''"):
        record.find("")


def test_a_prediction_passes_over_the_bodies_unread(record: Record, gemma: Model, run: Run) -> None:
    record.append(gemma, run(10), {"much": "x" * 1000})
    lines = record.path.read_bytes().splitlines(keepends=True)
    assert [line.startswith(BODY_START) for line in lines] == [True, False]
    record.path.write_bytes(lines[0].replace(b'"much"', b"much") + lines[1])
    assert overhead(record, gemma) == 10
    with pytest.raises(PlannerError, match="is damaged"):
        record.body(record.history().runs[0])


def test_a_model_is_known_again_wherever_it_lies(gemma: Model, smollm: Model, tmp_path: Path) -> None:
    moved = replace(gemma, path=tmp_path / "elsewhere.gguf")
    assert fingerprint(moved) == fingerprint(gemma)
    assert fingerprint(smollm) != fingerprint(gemma)
    assert fingerprint(gemma) == "76c3124201d14970"  # records of years ago are kept under it


def test_a_kill_at_any_byte_leaves_the_run_or_nothing_of_it(record: Record, gemma: Model, run: Run) -> None:
    record.append(gemma, run(10), {"text": "x" * 300})
    before = len(record.path.read_bytes())
    record.append(gemma, run(20, log="log"), {"text": "x" * 300})
    everything = record.path.read_bytes()
    for cut in range(before, len(everything) + 1):
        record.path.write_bytes(everything[:cut])
        history = record.history()
        whole = cut >= len(everything) - 1  # without its newline the last line is whole still
        assert len(history.runs) == 1 + whole
        assert overhead(record, gemma) == (20 if whole else 10)
        for kept in history.runs:
            record.body(kept)  # a run that is shown is there with everything
        assert len(list(record.runs())) == len(history.runs)  # and a body without its head is none


def test_after_a_cut_the_record_goes_on(record: Record, gemma: Model, run: Run) -> None:
    record.append(gemma, run(10), {})
    record.append(gemma, run(20), {})
    record.path.write_bytes(record.path.read_bytes()[:-20])
    record.append(gemma, run(30), {})
    assert overhead(record, gemma) == 30
    assert len(record.history().runs) == 2


# Other versions ---------------------------------------------------------------------------------------------


def first_version(model: Model, reconciliation: Reconciliation, overhead_bytes: object) -> bytes:
    """A line as version 1 wrote it."""
    document = run_document(reconciliation)
    del document["hardware"], document["reconciliation"]["lessons"]
    entry = {
        "schema_version": 1,
        "model": fingerprint(model),
        "engine": reconciliation.measurement.engine_build,
        "devices": [],
        "overhead_bytes": overhead_bytes,
        "run": document,
    }
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def test_a_record_of_the_first_version_is_read(record: Record, gemma: Model, run: Run) -> None:
    record.folder.mkdir(parents=True)
    record.path.write_bytes(first_version(gemma, run(None), 77))
    assert overhead(record, gemma, "0abc123") == 77
    (old,) = record.history().runs
    assert old.model_name == "model"
    assert (old.users, old.verdict, old.at) == (2, "fits", "2026-11-29T12:00:00+00:00")
    document, log = record.body(record.find(old.id))
    assert document["command"].startswith("llama-server --model model.gguf")
    assert log == ""
    new = record.append(gemma, run(20), {})
    record.forget(record.find(new))
    assert overhead(record, gemma) == 77
    record.forget(record.find(old.id))
    assert overhead(record, gemma) is None


def test_entries_of_a_later_version_are_counted_and_refused(record: Record, gemma: Model, run: Run) -> None:
    record.append(gemma, run(10), {})
    with record.path.open("ab") as file:
        file.write(b'{"body_of":"0ddba11","schema_version":3,"run":{},"log":{}}\n')
        file.write(b'{"schema_version":3,"id":"0ddba11","kind":"run","lessons":"in other words"}\n')
    assert overhead(record, gemma) == 10
    assert record.history().later == {"0ddba11": 3}
    with pytest.raises(PlannerError, match=r"Run 0ddba11 was recorded by a later planner.* reads up to version 2"):
        record.find("0dd")
    record.append(gemma, run(20), {})
    assert overhead(record, gemma) == 20


@pytest.mark.parametrize(
    "line",
    [
        b'{"schema_version": "2", "id": "0ddba11", "model": "%s"}',
        b'{"schema_version": 2, "id": "0ddba11", "kind": "run", "model": "%s", "overhead_bytes": 99}',
        b'{"schema_version": 2, "id": "0ddba11", "kind": "something else"}',
        b'{"schema_version": 2, "id": "0ddba11"}',
        b'{"model": "%s", "overhead_bytes": 99}',
        b'{"schema_version": 1, "model": "%s", "overhead_bytes": "99"}',
        b'["%s"]',
        b"",
        b"\xff\xfe\x00",
        b"\x00" * 100,
        b"null",
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_lines_that_are_not_understood_are_passed_over(record: Record, gemma: Model, run: Run, line: bytes) -> None:
    record.append(gemma, run(10), {})
    with record.path.open("ab") as file:
        file.write(line.replace(b"%s", fingerprint(gemma).encode()) + b"\n")
    assert overhead(record, gemma) == 10
    assert len(record.history().runs) == 1


@pytest.mark.parametrize("wrong", ["99", 0, -1, True, 1.5, [], {}])
def test_an_overhead_that_is_no_size_is_not_learned(record: Record, gemma: Model, run: Run, wrong: object) -> None:
    record.append(gemma, run(10), {})
    body, head = record.path.read_bytes().splitlines()
    changed = json.loads(head)
    changed["lessons"]["overhead_bytes"] = wrong
    with record.path.open("ab") as file:
        file.write(body + b"\n" + json.dumps(changed).encode() + b"\n")
    assert overhead(record, gemma) == 10


@pytest.mark.parametrize(
    ("of", "name", "wrong"),
    [
        ("", "kinds", [None]),
        ("context", "n_ctx_seq", "x"),
        ("context", "n_seq_max", []),
        ("lessons", "drivers", [{"device": "CUDA0", "description": "x", "size_bytes": "9"}]),
        ("lessons", "compute", [{"device": "CPU", "predicted_bytes": 0, "reserved_bytes": 9, "corrected": False}]),
    ],
)
def test_a_head_with_figures_that_are_none_is_passed_over(
    record: Record, gemma: Model, run: Run, of: str, name: str, wrong: object
) -> None:
    record.append(gemma, run(10), {})
    body, head = record.path.read_bytes().splitlines()
    changed = json.loads(head)
    (changed[of] if of else changed)[name] = wrong
    with record.path.open("ab") as file:
        file.write(body + b"\n" + json.dumps(changed).encode() + b"\n")
    assert len(record.history().runs) == 1


# Where it lies ----------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_is_a_sentence(gemma: Model, run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    record = Record(tmp_path / "file" / "below")
    with pytest.raises(PlannerError, match=r"cannot be kept in .*: Not a directory") as error:
        record.append(gemma, run(10), {})
    assert DATA_VARIABLE in error.value.hint
    with pytest.raises(PlannerError, match="cannot be kept"):
        record.check_writable()


def test_a_record_that_cannot_be_read_is_a_sentence_and_no_condition(gemma: Model, tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.path.mkdir()
    with pytest.raises(PlannerError, match=r"The record in .* cannot be read: Is a directory"):
        record.history()
    assert record.learned(gemma, MACHINE) == NOTHING_LEARNED


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
