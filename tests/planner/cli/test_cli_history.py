"""`planner history`: what is listed, shown, exported and taken back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import measured_as_planned
from planner_process import Planner
from samples import assert_sizes_are_named

from planner import Hardware, Launch, Model, predict
from planner.export.documents import run_document
from planner.launch import CacheType
from planner.reconcile.reconciliation import reconcile
from planner.reconcile.record import Record, default_folder
from planner.units import MIB

Fails = Callable[..., str]
LOG = "0.00.033.714 I load_backend: loaded CPU backend\n0.01.546.257 I srv  llama_server: model loaded\n"


@pytest.fixture
def record() -> Record:
    return Record(default_folder())


@pytest.fixture
def kept(record: Record, gemma: Model) -> Callable[..., str]:
    """Puts one run into the record as if it had been made on this machine; its id."""

    def keep(
        cache_type: CacheType = "f16", users: int = 2, context: int = 2048, unified: bool = False, more_mib: int = 0
    ) -> str:
        launch = Launch.for_users(users, context, cache_type=cache_type, unified=unified)
        plan = predict(gemma, launch, Hardware.detect(), prompt_tokens=600)
        resident = plan.resident_bytes() + more_mib * MIB
        measurement = measured_as_planned(plan, log_text=LOG, resident_bytes=resident)
        measurement = replace(measurement, everyone=replace(measurement.everyone, users=users))
        run = reconcile(plan, measurement)
        return record.append(gemma, run, run_document(run))

    return keep


def test_before_the_first_run_it_says_where_runs_will_be_kept(planner: Planner, record: Record) -> None:
    result = planner("history")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Nothing was measured yet")
    assert str(record.path) in result.stdout
    assert json.loads(planner("history", "--json").stdout)["runs"] == []
    assert planner("history", "export").stdout == ""


def test_runs_are_a_table_that_fits_80_columns(planner: Planner, kept: Callable[..., str]) -> None:
    ids = [kept(), kept("q8_0", 4, 8192, unified=True), kept("q4_0", 1, 32768)]
    result = planner("history", env={"COLUMNS": "80"})
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = lines[2:5]
    assert [row[:6] for row in rows] == [run[:6] for run in ids]
    assert [row.split()[1] for row in rows] == ["2026-11-29"] * 3
    for row, launch in zip(rows, ("2x2k f16", "4:32k q8_0", "1x32k q4_0"), strict=True):
        assert launch in row
        assert " 0abc123 " in row
        assert row.endswith(("fits", "tight"))
    assert "overhead" in result.stdout  # what was learned
    assert ids[2][:6] in lines[-3]


def test_the_table_as_json(planner: Planner, kept: Callable[..., str]) -> None:
    run = kept(more_mib=20)
    document = json.loads(planner("history", "--json").stdout)
    assert_sizes_are_named(document)
    assert document["schema_version"] == 1
    assert [(entry["id"], entry["forgotten"]) for entry in document["runs"]] == [(run, False)]
    (learned,) = document["learned"]
    assert (learned["what"], learned["runs"]) == ("overhead", [run])
    assert learned["size_bytes"] == document["runs"][0]["lessons"]["overhead_bytes"]


def test_a_run_is_shown_with_everything_and_its_log(planner: Planner, kept: Callable[..., str]) -> None:
    run = kept(more_mib=60)
    result = planner("history", "show", run[:5])
    assert (result.returncode, result.stderr) == (0, "")
    for word in (
        run,
        "0abc123",
        "weights (CPU_Mapped)",
        "kv",
        "compute",
        "output",
        "resident",
        "learned now",
        "checkpoints",
    ):
        assert word in result.stdout
    for word in ("Command   llama-server --model model.gguf", "100.0 tokens/s read", "Taught    the process holds"):
        assert word in result.stdout
    assert result.stdout.endswith(LOG)


def test_a_run_is_shown_as_json(planner: Planner, kept: Callable[..., str]) -> None:
    run = kept()
    document = json.loads(planner("history", "show", run, "--json").stdout)
    assert_sizes_are_named(document)
    assert (document["id"], document["log"]) == (run, LOG)
    assert document["run"]["measured"]["everyone"]["generated_tokens_per_s"] == 20.0
    assert document["run"]["hardware"]["pools"]


def test_everything_is_exported_as_lines_or_as_one_document(planner: Planner, kept: Callable[..., str]) -> None:
    ids = [kept(), kept("q8_0")]
    lines = [json.loads(line) for line in planner("history", "export").stdout.splitlines()]
    whole = json.loads(planner("history", "export", "--json").stdout)
    assert [line["id"] for line in lines] == ids
    assert whole == {"schema_version": 1, "runs": lines}
    assert {line["log"] for line in lines} == {LOG}


def test_what_was_taken_back_is_used_no_more(
    planner: Planner, kept: Callable[..., str], gemma_path: Path, record: Record
) -> None:
    def process() -> tuple[str, int]:
        document = json.loads(planner("plan", gemma_path, "--json").stdout)
        allocation = next(a for a in document["devices"][0]["allocations"] if a["buffer"] == "process")
        return allocation["certainty"], allocation["resident_bytes"]

    estimate = process()
    first, second = kept(more_mib=10), kept(more_mib=90)
    assert process() == ("learned", estimate[1] + 90 * MIB)
    said = planner("history", "forget", second).stdout
    assert f"run {first} tells it now" in said
    assert process() == ("learned", estimate[1] + 10 * MIB)
    assert "it is an estimate again" in planner("history", "forget", first).stdout
    assert process() == estimate
    assert "nothing changes" in planner("history", "forget", first).stdout
    table = planner("history").stdout
    assert f"{first[:6]}*" in table
    assert "* " in table and "learned" not in table
    assert len(record.history().runs) == 2


def test_a_launch_that_was_measured_says_how_fast_it_was(
    planner: Planner, kept: Callable[..., str], gemma_path: Path
) -> None:
    older, run = kept("q8_0"), kept("q8_0")
    same = ("plan", gemma_path, "-c", 4096, "-np", 2, "-ctk", "q8_0", "-ctv", "q8_0", "--cache-ram", 256)
    text = " ".join(planner(*same).stdout.split())
    assert (
        "Measured here with this launch, after 600 tokens: 20.0 tokens/s for 2 at once, 20.0 tokens/s for one alone"
        in text
    )
    assert f"(run {run}, 2026-11-29, 0abc123)" in text
    seen = json.loads(planner(*same, "--json").stdout)["measured_here"]
    assert (seen["run"], seen["generated_tokens_per_s"]) == (run, 20.0)
    planner("history", "forget", run)
    assert json.loads(planner(*same, "--json").stdout)["measured_here"]["run"] == older
    for other in (("-ub", 256), ("--ram", "16G"), ("-c", 8192)):
        assert json.loads(planner(*same, *other, "--json").stdout)["measured_here"] is None


def test_mistakes_are_one_sentence(fails: Fails, planner: Planner, kept: Callable[..., str], record: Record) -> None:
    kept()
    kept()
    assert fails(1, "history", "show", "zzz").startswith("No run in the record begins with 'zzz'")
    assert fails(1, "history", "forget", "").startswith("2 runs begin with ''")
    assert "RUN" in fails(2, "history", "show")
    assert fails(2, "history", "--json", "export").startswith("Put --json behind export")
    assert "--users" in fails(2, "--users", 3, "history")
    with record.path.open("ab") as file:
        file.write(b'{"schema_version":3,"id":"0ddba11"}\n')
    assert fails(1, "history", "show", "0ddb").endswith("Update planner to see it.")
    result = planner("history")
    assert result.returncode == 0
    assert result.stderr.startswith("1 entry was written by a later planner")


def test_a_record_that_cannot_be_read_is_a_sentence(
    fails: Fails, planner: Planner, record: Record, gemma_path: Path
) -> None:
    record.path.mkdir(parents=True)
    assert "cannot be read: Is a directory" in fails(1, "history")
    assert planner("plan", gemma_path).returncode == 0


@pytest.mark.parametrize("wrong", [None, "x", {"reserved": [None]}])
def test_a_report_that_something_else_changed_is_a_sentence(
    fails: Fails, planner: Planner, kept: Callable[..., str], record: Record, wrong: object
) -> None:
    run = kept()
    body, head = record.path.read_bytes().splitlines()
    changed = json.loads(body)
    changed["run"]["reconciliation"] = wrong
    record.path.write_bytes(json.dumps(changed, separators=(",", ":")).encode() + b"\n" + head + b"\n")
    assert fails(1, "history", "show", run).startswith(f"The report of run {run} is damaged.")
    assert f'"reconciliation": {json.dumps(wrong)[0]}' in planner("history", "show", run, "--json").stdout
