"""The main job: which launches are started, and what becomes of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engines import write_engine

from planner import Hardware, Launch, Model, Verdict, predict
from planner import campaign as module
from planner.campaign import check_fits, may_start, run_campaign, run_cells
from planner.cli.render_run import render_campaign, short_name
from planner.engine.find import Engine, EngineDevice, identify
from planner.engine.process import Cancelled
from planner.engine.smoke import smoke_test
from planner.errors import DoesNotFitError, EngineError, ModelError, PlannerError, UsageError
from planner.export.documents import measure_document
from planner.fit import MAIN_CACHE_TYPES
from planner.measure import Load, Measurement, Progress
from planner.reconcile.record import Record
from planner.sweeps import Cell, Sweep, begin_sweep, cells_for, launches_for, machine_of, seen_by
from planner.units import GIB, MIB


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """A server that leaves a trace when it is started, and dies."""
    serve = f"echo started >>{tmp_path}/trace; echo 'error: no memory'; exit 1"
    return identify(write_engine(tmp_path / "llama-server", serve=serve), "option")


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "record")


@pytest.fixture
def launches(gemma: Model, hardware: Hardware) -> tuple[Launch, ...]:
    return launches_for(gemma, hardware, users=2, ctx_per_user=32768, cache_types=MAIN_CACHE_TYPES)


@pytest.fixture
def came_true(
    gemma: Model, hardware: Hardware, measured: Callable[..., Measurement], monkeypatch: pytest.MonkeyPatch
) -> list[Launch]:
    """Replaces every run by one that comes true; the launches that were run."""
    run: list[Launch] = []

    def measure(_model: Model, launch: Launch, _engine: Engine, **options: object) -> Measurement:
        run.append(launch)
        options["on_progress"](Progress(phase="starting"))  # type: ignore[operator]
        return measured(predict(gemma, launch, hardware))

    monkeypatch.setattr(module, "measure", measure)
    monkeypatch.setattr(module, "smoke_test", lambda *_args, **_options: None)
    return run


def machine(ram: int) -> Callable[[], Hardware]:
    return lambda: Hardware.simulate(ram=ram)


# Launches --------------------------------------------------------------------------------------------------


def test_the_launches_differ_in_nothing_but_the_cache_type(launches: tuple[Launch, ...]) -> None:
    assert [launch.cache_type_k for launch in launches] == ["f16", "q8_0", "q4_0"]
    assert {launch.with_cache_type("f16") for launch in launches} == {launches[0]}
    assert (launches[0].ctx_size, launches[0].parallel, launches[0].kv_unified) == (65536, 2, False)


def test_people_can_share_one_cache(gemma: Model, hardware: Hardware) -> None:
    (launch,) = launches_for(gemma, hardware, users=3, ctx_per_user=4096, unified=True, cache_types=["q8_0"])
    assert (launch.ctx_size, launch.kv_unified) == (12288, True)


@pytest.mark.parametrize("ram", [2 * GIB, 3 * GIB, 4 * GIB, 8 * GIB, 64 * GIB])
def test_what_grows_is_bounded_by_what_the_largest_launch_leaves_free(gemma: Model, ram: int) -> None:
    hardware = Hardware.simulate(ram=ram)
    for launch in launches_for(gemma, hardware, users=2, ctx_per_user=32768, cache_types=MAIN_CACHE_TYPES):
        plan = predict(gemma, launch, hardware)
        assert plan.bytes() + plan.growth_bytes() <= ram


def test_the_machine_has_the_devices_that_the_engine_sees(engine: Engine, hardware: Hardware) -> None:
    card = EngineDevice(name="CUDA0", description="a card", total_bytes=8 * GIB, free_bytes=6 * GIB)
    with_card = replace(engine, devices=(card,))
    assert [device.name for device in seen_by(engine, hardware).devices] == ["CPU"]
    seen = seen_by(with_card, hardware)
    assert [device.name for device in seen.devices] == ["CUDA0", "CPU"]
    assert seen.pool_named("CUDA0").usable_bytes == 6 * GIB


def test_what_devices_have_free_is_asked_again_for_each_launch(smollm: Model, tmp_path: Path) -> None:
    """Another program took 2 GiB of the card since the engine was found."""
    engine = identify(
        write_engine(tmp_path / "llama-server", devices=["CUDA0: a card (8192 MiB, 6144 MiB free)"]), "option"
    )
    write_engine(engine.path, devices=["CUDA0: a card (8192 MiB, 4096 MiB free)"])
    assert machine_of(engine).pool_named("CUDA0").usable_bytes == 4 * GIB
    write_engine(engine.path, devices=["CUDA0: a card (8192 MiB, 0 MiB free)"])
    launch = Launch(ctx_size=1024, parallel=1, n_gpu_layers=99)
    with pytest.raises(DoesNotFitError, match="CUDA0"):
        run_cells(smollm, [Cell(launch, engine, "one")], None)
    engine.path.unlink()  # what was seen first still counts, and the run will tell
    assert machine_of(engine).pool_named("CUDA0").usable_bytes == 6 * GIB


def test_every_launch_has_the_layers_on_accelerators_that_the_largest_leaves_room_for(gemma: Model) -> None:
    whole = predict(gemma, Launch.for_users(2, 32768), Hardware.simulate(ram=16 * GIB, vram=[16 * GIB]))
    all_layers = 18 + 1  # and the output layer
    for vram, least, most in (
        (16 * GIB, all_layers, all_layers),
        (whole.bytes(device="CUDA0") - MIB, 1, all_layers - 1),
        (64 * MIB, 0, 0),
    ):
        machine = Hardware.simulate(ram=16 * GIB, vram=[vram])
        launches = launches_for(gemma, machine, users=2, ctx_per_user=32768, cache_types=MAIN_CACHE_TYPES)
        [chosen] = {0 if launch.device == "none" else launch.n_gpu_layers for launch in launches}
        assert chosen is not None and least <= chosen <= most
        cards = [device for device in predict(gemma, launches[0], machine).devices if not device.is_cpu]
        assert all(card.verdict in (Verdict.FITS, Verdict.TIGHT) for card in cards)


# What is started -------------------------------------------------------------------------------------------


def test_nothing_is_started_when_nothing_fits(
    gemma: Model, launches: tuple[Launch, ...], engine: Engine, record: Record, tmp_path: Path
) -> None:
    with pytest.raises(DoesNotFitError, match=r"Nothing was started, since no launch fits: .* more host memory"):
        run_campaign(gemma, launches, engine, record, detect=machine(200 * MIB))
    assert not (tmp_path / "trace").exists()
    assert not record.path.exists()


def test_force_starts_it_all_the_same(
    gemma: Model, launches: tuple[Launch, ...], engine: Engine, record: Record, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match="error: no memory"):
        run_campaign(gemma, launches, engine, record, force=True, detect=machine(200 * MIB))
    # One launch that fails does not keep the next from being tried.
    assert (tmp_path / "trace").read_text() == "started\n" * len(launches)


def test_what_was_forced_is_not_recommended_and_that_is_said(
    gemma: Model, launches: tuple[Launch, ...], engine: Engine, record: Record, came_true: list[Launch]
) -> None:
    campaign = run_campaign(gemma, launches, engine, record, force=True, detect=machine(200 * MIB))
    assert len(came_true) == len(launches)
    assert campaign.recommendation is None
    said = render_campaign(campaign)
    assert said.endswith("None is recommended: each would leave this machine too little memory.")


def test_what_was_forced_below_the_floor_is_not_recommended_though_it_just_fits(
    gemma: Model, launches: tuple[Launch, ...], engine: Engine, record: Record, came_true: list[Launch]
) -> None:
    """It leaves something, but less than a run must leave alone; also where it was measured before."""
    lean = replace(launches[0], cache_ram=0, ctx_checkpoints=0)
    needed = predict(gemma, lean, Hardware.simulate(ram=16 * GIB)).bytes()
    ram = int((needed - MIB) / 0.975)
    plan = predict(gemma, lean, Hardware.simulate(ram=ram))
    assert plan.verdict is Verdict.TIGHT and not may_start(plan)
    cells = [Cell(lean, engine, "lean")]
    sweep = begin_sweep(gemma, cells, Load(), record, resume=False)
    assert run_cells(gemma, cells, record, sweep=sweep, force=True, detect=machine(ram)).recommendation is None
    again = begin_sweep(gemma, cells, Load(), record, resume=True)
    campaign = run_cells(gemma, cells, record, sweep=again, force=True, detect=machine(ram))
    assert campaign.recommendation is None
    assert len(campaign.documents) == len(came_true) == 1


def test_what_does_not_fit_is_left_out_and_named(
    gemma: Model, launches: tuple[Launch, ...], engine: Engine, record: Record, came_true: list[Launch]
) -> None:
    hardware = Hardware.simulate(ram=16 * GIB)
    needs = [predict(gemma, launch, hardware).bytes() for launch in launches]
    ram = (needs[0] + needs[1]) // 2
    seen: list[str] = []
    campaign = run_campaign(
        gemma,
        launches,
        engine,
        record,
        detect=machine(ram),
        on_run=lambda run: seen.append(run.plan.launch.cache_type_k),
    )
    assert [left.plan.launch.cache_type_k for left in campaign.not_run] == ["f16"]
    assert [launch.cache_type_k for launch in came_true] == seen == ["q8_0", "q4_0"]
    assert len(record.history().runs) == 2
    assert campaign.recommendation is not None
    assert campaign.recommendation.launch.cache_type_k in ("q8_0", "q4_0")


def test_what_was_not_started_is_not_recommended(
    gemma: Model, engine: Engine, record: Record, came_true: list[Launch]
) -> None:
    """f16 would leave less than the guard lets pass, and all are tight: precision alone would choose it."""
    roomy = Hardware.simulate(ram=16 * GIB)
    launches = launches_for(gemma, roomy, users=2, ctx_per_user=2048, cache_types=["f16", "q8_0"])
    launches = tuple(replace(launch, cache_ram=0, ctx_checkpoints=0) for launch in launches)
    ram = int((predict(gemma, launches[0], roomy).bytes() - MIB) / 0.975)
    verdicts = [predict(gemma, launch, Hardware.simulate(ram=ram)).verdict for launch in launches]
    assert verdicts == [Verdict.TIGHT, Verdict.TIGHT]
    campaign = run_campaign(gemma, launches, engine, record, detect=machine(ram))
    assert [left.plan.launch.cache_type_k for left in campaign.not_run] == ["f16"]
    assert campaign.recommendation is not None
    assert campaign.recommendation.launch == came_true[0] == launches[1]
    assert "where f16 would leave too little memory" in campaign.recommendation.reason
    assert campaign.recommended_command is not None


def test_every_run_is_recommended_from_kept_and_counted(
    gemma: Model, launches: tuple[Launch, ...], engine: Engine, record: Record, came_true: list[Launch]
) -> None:
    indices: list[int] = []
    campaign = run_campaign(
        gemma,
        launches,
        engine,
        record,
        detect=machine(64 * GIB),
        on_progress=lambda index, _progress: indices.append(index),
    )
    assert indices == [0, 1, 2]
    assert len(came_true) == 3
    assert campaign.not_run == ()
    assert campaign.recommendation is not None
    assert campaign.recommendation.launch == launches[0]
    assert campaign.recommended_command is not None
    assert campaign.recommended_command.startswith("llama-server --model model.gguf ")


def test_the_second_run_is_predicted_with_what_the_first_taught(
    gemma: Model, launches: tuple[Launch, ...], engine: Engine, record: Record, came_true: list[Launch]
) -> None:
    same_build = replace(engine, version="1 (0abc123)")
    campaign = run_campaign(gemma, launches, same_build, record, detect=machine(64 * GIB))
    certainties = [next(a.certainty for a in run.plan.allocations if a.buffer == "process") for run in campaign.runs]
    assert certainties == ["estimated", "learned", "learned"]
    assert len(came_true) == 3


def test_a_campaign_works_without_a_record(
    gemma: Model, launches: tuple[Launch, ...], engine: Engine, came_true: list[Launch]
) -> None:
    assert len(run_campaign(gemma, launches, engine, None, detect=machine(64 * GIB)).runs) == len(came_true) == 3


def test_a_record_that_cannot_be_written_is_noticed_before_the_first_run(
    gemma: Model, launches: tuple[Launch, ...], engine: Engine, came_true: list[Launch], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PlannerError, match="cannot be kept"):
        run_campaign(gemma, launches, engine, Record(tmp_path / "file"), detect=machine(64 * GIB))
    assert came_true == []


def test_a_refused_launch_is_no_reason_to_give_up_the_others(
    gemma: Model, hardware: Hardware, launches: tuple[Launch, ...]
) -> None:
    refused = replace(launches[1], flash_attn="off")
    plans = [predict(gemma, launch, hardware) for launch in (refused, launches[0])]
    check_fits(plans)
    with pytest.raises(DoesNotFitError, match="refuses a q8_0 V cache") as error:
        check_fits(plans[:1])
    assert error.value.hint == ""


def test_memory_that_cannot_be_read_is_not_called_too_small(
    gemma: Model, hardware: Hardware, launches: tuple[Launch, ...]
) -> None:
    pool = replace(hardware.host, usable_bytes=None, source="no probe could tell")
    blind = replace(hardware, pools=(pool,))
    with pytest.raises(DoesNotFitError, match="it is not known whether it fits: How much host memory") as error:
        check_fits([predict(gemma, launch, blind) for launch in launches])
    assert "--force" in error.value.hint


# Sweeps ----------------------------------------------------------------------------------------------------


@pytest.fixture
def cells(gemma: Model, hardware: Hardware, engine: Engine) -> tuple[Cell, ...]:
    other = replace(engine, version="1 (0abc999)")
    return cells_for(gemma, hardware, [engine, other], users=[1, 2], contexts=[512, 4096], cache_types=["f16", "q8_0"])


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
