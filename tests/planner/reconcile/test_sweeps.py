"""Sweeps: what they measure, how they go on after a cut, and what a cell that fails costs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engines import write_engine
from made_runs import machine

from planner import Hardware, Launch, Model, predict
from planner import campaign as module
from planner.campaign import run_cells
from planner.cli.render_run import render_campaign, short_name
from planner.engine.find import Engine
from planner.engine.process import Cancelled
from planner.engine.smoke import smoke_test
from planner.errors import EngineError, ModelError, PlannerError, UsageError
from planner.export.documents import measure_document
from planner.fit import MAIN_CACHE_TYPES
from planner.measure import Load, Measurement
from planner.reconcile.record import Record
from planner.sweeps import Cell, Sweep, begin_sweep, cells_for
from planner.units import GIB


def test_a_sweep_is_every_combination(cells: tuple[Cell, ...]) -> None:
    assert len(cells) == len({cell.name for cell in cells}) == 16
    assert {(cell.launch.slots, cell.launch.ctx_size // cell.launch.slots) for cell in cells} == {
        (users, context) for users in (1, 2) for context in (512, 4096)
    }
    assert cells[0].name.startswith("f16, 1 x 512, 0abc123 (")


def test_what_asks_the_same_is_measured_once(gemma: Model, hardware: Hardware, engine: Engine, tmp_path: Path) -> None:
    """By an engine named twice, by a link to it, by contexts that round to one, by a type named twice."""
    link = tmp_path / "another-name"
    link.symlink_to(engine.path)
    copy = write_engine(tmp_path / "copy")
    engines = [engine, engine, replace(engine, path=link), replace(engine, path=copy)]
    cells = cells_for(
        gemma, hardware, engines, users=[1, 1], contexts=[1, 2, 256, 257], cache_types=["f16", "q8_0", "f16"]
    )
    assert [(cell.engine.path, cell.launch.ctx_size, cell.launch.cache_type_k) for cell in cells] == [
        (path, ctx_size, cache_type)
        for path in (engine.path, copy)
        for ctx_size in (256, 512)
        for cache_type in ("f16", "q8_0")
    ]
    assert len({cell.name for cell in cells}) == len(cells)


def test_more_than_can_be_planned_is_refused(gemma: Model, hardware: Hardware, engine: Engine) -> None:
    with pytest.raises(UsageError, match=r"These are 180,000 measurements; ask for 1,000 at most at once\."):
        cells_for(gemma, hardware, [engine], users=range(1, 301), contexts=range(1, 201), cache_types=MAIN_CACHE_TYPES)


def test_a_sweep_that_was_cut_off_goes_on_where_it_stopped(
    gemma: Model, cells: tuple[Cell, ...], record: Record, came_true: list[Launch]
) -> None:
    """The first call ends after three cells; the second does the rest, under the same name."""

    def cut_off(run: object) -> None:
        if len(came_true) == 3:
            raise KeyboardInterrupt

    sweep = begin_sweep(gemma, cells, Load(), record, resume=True)
    assert sweep.ended == {}
    with pytest.raises(KeyboardInterrupt):
        run_cells(gemma, cells, record, sweep=sweep, detect=machine(64 * GIB), on_run=cut_off)
    again = begin_sweep(gemma, cells, Load(), record, resume=True)
    assert again.id == sweep.id
    assert set(again.ended) == {cell.name for cell in cells[:3]}
    campaign = run_cells(gemma, cells, record, sweep=again, detect=machine(64 * GIB))
    assert came_true == [cell.launch for cell in cells]
    assert [document["sweep"]["cell"] for document in campaign.documents] == [cell.name for cell in cells]
    assert len(campaign.runs) == 13
    assert campaign.recommendation is None  # people and contexts differ
    assert len(begin_sweep(gemma, cells, Load(), record, resume=True).ended) == 16


def test_a_resumed_sweep_of_which_only_what_does_not_fit_is_left_tells_what_it_has(
    gemma: Model, launches: tuple[Launch, ...], engine: Engine, record: Record, came_true: list[Launch]
) -> None:
    needs = [predict(gemma, launch, Hardware.simulate(ram=16 * GIB)).bytes() for launch in launches[:2]]
    detect = machine(sum(needs) // 2)
    cells = [Cell(launch, engine, launch.cache_type_k) for launch in launches[:2]]
    for _ in range(2):
        sweep = begin_sweep(gemma, cells, Load(), record, resume=True)
        campaign = run_cells(gemma, cells, record, sweep=sweep, detect=detect)
        assert [left.plan.launch.cache_type_k for left in campaign.not_run] == ["f16"]
        assert [document["sweep"]["cell"] for document in campaign.documents] == ["q8_0"]
        assert campaign.recommendation is not None
    assert [launch.cache_type_k for launch in came_true] == ["q8_0"]
    assert "q8_0" in render_campaign(campaign).splitlines()[3]  # the table


def test_only_the_same_question_goes_on(
    gemma: Model, smollm: Model, cells: tuple[Cell, ...], record: Record, came_true: list[Launch]
) -> None:
    sweep = begin_sweep(gemma, cells, Load(), record, resume=False)
    run_cells(gemma, cells[:2], record, sweep=sweep, detect=machine(64 * GIB))
    for model, asked, load, resume in (
        (gemma, cells, Load(), False),
        (gemma, cells, Load(fill=0.5), True),
        (gemma, cells[1:], Load(), True),
        (smollm, cells, Load(), True),
    ):
        assert begin_sweep(model, asked, load, record, resume=resume).ended == {}
    assert len(begin_sweep(gemma, cells, Load(), record, resume=True).ended) == 2


def test_the_recommendation_counts_what_was_measured_before(
    gemma: Model, hardware: Hardware, engine: Engine, record: Record, came_true: list[Launch]
) -> None:
    cells = cells_for(gemma, hardware, [engine], users=[2], contexts=[4096], cache_types=["f16", "q8_0", "q4_0"])
    sweep = begin_sweep(gemma, cells, Load(), record, resume=False)
    run_cells(gemma, cells[:1], record, sweep=sweep, detect=machine(64 * GIB))
    again = begin_sweep(gemma, cells, Load(), record, resume=True)
    campaign = run_cells(gemma, cells, record, sweep=again, detect=machine(64 * GIB))
    assert len(came_true) == 3
    assert campaign.recommendation is not None
    assert campaign.recommendation.launch.cache_type_k == "f16"
    assert campaign.recommended_command == sweep_command(again)


def sweep_command(sweep: Sweep) -> str:
    return str(next(iter(sweep.ended.values()))["command"])


def test_an_engine_that_fails_does_not_keep_another_from_being_measured(
    gemma: Model,
    hardware: Hardware,
    engine: Engine,
    record: Record,
    came_true: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = replace(engine, version="1 (0abc999)")

    def smoke_test(asked: Engine, **_options: object) -> None:
        if asked is broken:
            raise EngineError("it does not work here.")

    monkeypatch.setattr(module, "smoke_test", smoke_test)
    cells = cells_for(gemma, hardware, [broken, engine], users=[2], contexts=[4096], cache_types=["f16"])
    campaign = run_cells(gemma, cells, record, detect=machine(64 * GIB))
    assert [str(failure.error) for failure in campaign.failed] == ["it does not work here."]
    assert len(campaign.runs) == len(came_true) == 1


def test_an_engine_that_disappears_costs_its_own_cells(
    gemma: Model, hardware: Hardware, engine: Engine, record: Record, came_true: list[Launch], tmp_path: Path
) -> None:
    """Its report is told all the same, and which cells of which engine it cost."""
    gone = replace(engine, path=tmp_path / "gone", version="1 (0abc999)")
    kept = tmp_path / "engines.jsonl"
    cells = cells_for(gemma, hardware, [engine, gone], users=[1], contexts=[512, 1024], cache_types=["f16"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "smoke_test", lambda asked, **_: asked is gone and smoke_test(asked, kept=kept))
        campaign = run_cells(gemma, cells, record, detect=machine(64 * GIB))
    assert len(campaign.runs) == len(came_true) == len(record.history().runs) == 2
    assert [failure.cell for failure in campaign.failed] == list(cells[2:])
    said = " ".join(render_campaign(campaign).split())
    for context in ("512", "1k"):
        assert f"Failed f16 1x{context} 0abc999: The engine {gone.path} is gone (No such file or directory)" in said


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied", "/a/file"), ModelError("/a/file is gone.")])
def test_what_one_cell_meets_does_not_end_the_others(
    gemma: Model, cells: tuple[Cell, ...], came_true: list[Launch], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    smoked: list[None] = []

    def smoke_test(*_args: object, **_options: object) -> None:
        smoked.append(None)
        if len(smoked) == 1:
            raise error

    monkeypatch.setattr(module, "smoke_test", smoke_test)
    campaign = run_cells(gemma, cells[:2], None, detect=machine(64 * GIB))
    (failure,) = campaign.failed
    assert failure.cell == cells[0]
    assert str(failure.error) in ("Permission denied: /a/file.", "/a/file is gone.")
    assert came_true == [cells[1].launch]
    smoked.clear()
    with pytest.raises(PlannerError, match="/a/file"):  # nothing else was measured
        run_cells(gemma, cells[:1], None, detect=machine(64 * GIB))


def test_a_dry_run_is_no_condition(
    gemma: Model, cells: tuple[Cell, ...], came_true: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dry_run(*_args: object, **_options: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/a/file")

    monkeypatch.setattr(module, "dry_run", dry_run)
    assert len(run_cells(gemma, cells[:1], None, detect=machine(64 * GIB)).runs) == len(came_true) == 1


@pytest.mark.parametrize("ending", [Cancelled(), KeyboardInterrupt()])
def test_who_stops_stops_them_all(
    gemma: Model,
    cells: tuple[Cell, ...],
    came_true: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
    ending: BaseException,
) -> None:
    def smoke_test(*_args: object, **_options: object) -> None:
        raise ending

    monkeypatch.setattr(module, "smoke_test", smoke_test)
    with pytest.raises(type(ending)):
        run_cells(gemma, cells, None, detect=machine(64 * GIB))
    assert came_true == []


def test_a_record_that_fills_the_disk_ends_a_sweep(
    gemma: Model, cells: tuple[Cell, ...], record: Record, came_true: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(*_args: object) -> None:
        raise PlannerError("Measurements cannot be kept.")

    monkeypatch.setattr(Record, "append", append)
    with pytest.raises(PlannerError, match="cannot be kept"):
        run_cells(gemma, cells, record, detect=machine(64 * GIB))
    assert len(came_true) == 1


def replaced(path: Path, by: Path) -> None:
    """As an editor or a download does it: another file takes the name."""
    (other := path.with_name("other")).write_bytes(by.read_bytes())
    other.rename(path)


@pytest.mark.parametrize("change", ["replaced", "touched", "deleted"])
def test_a_model_that_is_not_the_same_file_any_more_is_not_recorded(
    smollm_path: Path,
    hardware: Hardware,
    engine: Engine,
    record: Record,
    measured: Callable[..., Measurement],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    change: str,
) -> None:
    """It is changed while the second of four cells is measured: that one's figures are of either file."""
    path = tmp_path / "model.gguf"
    path.write_bytes(smollm_path.read_bytes())
    model = Model.open(path)
    started: list[Launch] = []

    def measure(_model: Model, launch: Launch, *_args: object, **_options: object) -> Measurement:
        started.append(launch)
        if len(started) == 2:
            match change:
                case "replaced":
                    replaced(path, smollm_path)
                case "touched":
                    os.utime(path, ns=(0, 0))
                case "deleted":
                    path.unlink()
        return measured(predict(model, launch, hardware))

    monkeypatch.setattr(module, "measure", measure)
    monkeypatch.setattr(module, "smoke_test", lambda *_args, **_options: None)
    cells = cells_for(model, hardware, [engine], users=[1, 2], contexts=[512, 1024], cache_types=["f16"])
    campaign = run_cells(model, cells, record, detect=machine(64 * GIB))
    assert [run.measurement.launch for run in campaign.runs] == [cells[0].launch]
    assert len(record.history().runs) == 1
    assert len(started) == 2  # none is started after it
    said = "is gone (No such file or directory)" if change == "deleted" else "was replaced since it was read"
    assert [failure.cell for failure in campaign.failed] == list(cells[1:])
    assert all(f"{path} {said}; nothing of it is recorded." in str(failure.error) for failure in campaign.failed)


def test_cells_are_told_from_each_other_by_what_differs(cells: tuple[Cell, ...], engine: Engine) -> None:
    assert short_name(cells[0], cells[:2]) == "f16"
    assert [short_name(cell, cells[:8]) for cell in cells[1:3]] == ["q8_0 1x512", "f16 1x4k"]
    elsewhere = [replace(cell, engine=replace(engine, path=Path("/other/llama-server"))) for cell in cells[:2]]
    both = [*cells[:2], *elsewhere]
    assert [short_name(cell, both) for cell in both[1:3]] == [
        f"q8_0 0abc123 ({engine.path})",
        "f16 0abc123 (/other/llama-server)",
    ]


def test_the_document_names_the_engine_of_what_was_not_measured(
    gemma: Model, hardware: Hardware, cells: tuple[Cell, ...]
) -> None:
    launch, engine = cells[0].launch, cells[0].engine
    plan = predict(gemma, launch, hardware)
    document = measure_document(gemma, hardware, [], [(plan, engine)], [(launch, engine, "it died.")], None, None)
    named = {
        "version": engine.version,
        "build": "0abc123",
        "backends": list(engine.backends),
        "path": str(engine.path),
    }
    assert [entry["engine"] for entry in document["not_run"] + document["failed"]] == [named, named]
    assert document["failed"][0]["error"] == "it died."
    assert document["not_run"][0]["verdict"] == "fits"
