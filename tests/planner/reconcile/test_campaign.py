"""The main job: which launches are started, and what becomes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_engines import write_engine
from made_runs import machine

from planner import Hardware, Launch, Model, Verdict, predict
from planner.campaign import check_fits, may_start, run_campaign, run_cells
from planner.cli.render_run import render_campaign
from planner.engine.find import Engine, EngineDevice, identify
from planner.errors import DoesNotFitError, EngineError, PlannerError
from planner.fit import MAIN_CACHE_TYPES
from planner.measure import Load
from planner.reconcile.record import Record
from planner.sweeps import Cell, begin_sweep, launches_for, machine_of, seen_by
from planner.units import GIB, MIB

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
