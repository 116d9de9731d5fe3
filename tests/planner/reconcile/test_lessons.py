"""What runs teach together, and what they do not determine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import measured_as_planned

from planner import Hardware, Launch, MemoryPlan, Model, predict
from planner.engine.dry_figures import DryFigure, DryRun
from planner.engine.log import Buffer, read_log
from planner.memory import Learned, LearnedSize
from planner.memory.learned import Correction
from planner.reconcile.history import in_force
from planner.reconcile.lessons import ComputeLesson, DriverLesson, correction_told, driver_told
from planner.reconcile.reconciliation import Reconciliation, reconcile
from planner.reconcile.record import Record
from planner.units import GIB, MIB

DRIVER = "NVIDIA 580.95.05"


def with_driver(hardware: Hardware, version: str | None = DRIVER) -> Hardware:
    """The machine with this driver for its cards."""
    devices = (device if device.is_cpu else replace(device, driver=version) for device in hardware.devices)
    return replace(hardware, devices=tuple(devices))


CARD = with_driver(Hardware.simulate(ram=16 * GIB, vram=[8 * GIB]))
TABLE = "common_memory_breakdown_print: | memory breakdown [MiB] | total free self model context compute unaccounted |"
ROW = "common_memory_breakdown_print: |   - CUDA0 (RTX 4090) | {total} = {free} + ({own} = {own} + 0 + 0) + {rest} |"


def table(total: int, free: int, own: int) -> list[str]:
    """MiB of a card."""
    return [TABLE, ROW.format(total=total, free=free, own=own, rest=total - free - own)]


def on_card(model: Model, *, taken_mib: int, others_mib: int = 0, free_mib: int = 7000, total_mib: int = 8192) -> str:
    """The log of a server that took so much beside its buffers, while other processes took something, too."""
    own = 1000
    before, after = table(total_mib, free_mib, own), table(total_mib, free_mib - own - taken_mib - others_mib, own)
    return "\n".join([*before, "srv  llama_server: model loaded", *after])


def run_on_card(
    model: Model, learned: Learned | None = None, hardware: Hardware = CARD, **figures: int
) -> Reconciliation:
    plan = predict(model, Launch.for_users(2, 2048), hardware, prompt_tokens=600, learned=learned or Learned())
    return reconcile(plan, measured_as_planned(plan, log_text=on_card(model, **figures)))


def driver_row(run: Reconciliation) -> tuple[int, str]:
    row = next(row for row in run.reserved if row.component == "driver on CUDA0")
    assert row.measured_bytes is not None
    return row.measured_bytes // MIB, row.cause


# Drivers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taken_mib", "cause"),
    [
        (400, ""),
        (402, ""),
        (650, "driver context and workspaces, within the range of the estimate (200.0 MiB to 800.0 MiB)"),
        (
            40,
            "less than the least estimate of the driver's context (200.0 MiB): some or all of it was there before, or "
            "another process gave memory back",
        ),
        (
            1100,
            "a driver context of up to 800.0 MiB explains 400.0 MiB of it; unexplained: 300.0 MiB more, "
            "by another process perhaps",
        ),
        (-90, "another process gave back 90.0 MiB or more meanwhile"),
    ],
)
def test_what_a_card_lost_beside_the_buffers_has_a_cause(gemma: Model, taken_mib: int, cause: str) -> None:
    assert driver_row(run_on_card(gemma, taken_mib=taken_mib)) == (taken_mib, cause)


def test_buffers_that_lie_outside_the_card_are_told(gemma: Model) -> None:
    log = [*table(8192, 7000, 1000), "srv  llama_server: model loaded", *table(8192, 500, 9000)]
    plan = predict(gemma, Launch.for_users(2, 2048), CARD, prompt_tokens=600)
    run = reconcile(plan, measured_as_planned(plan, log_text="\n".join(log)))
    assert driver_row(run)[1] == "spilled to shared memory: 1.3 GiB more than the device has are in use"
    assert run.lessons.drivers == ()


def test_one_run_cannot_tell_a_driver_from_another_process_and_two_that_agree_can(gemma: Model, tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.append(gemma, run_on_card(gemma, taken_mib=310), {})
    assert record.learned(gemma, CARD).drivers == {}
    record.append(gemma, run_on_card(gemma, taken_mib=310, others_mib=500), {})
    assert record.learned(gemma, CARD).drivers == {}
    record.append(gemma, run_on_card(gemma, taken_mib=306), {})
    last = record.append(gemma, run_on_card(gemma, taken_mib=308), {})
    learned = record.learned(gemma, CARD)
    assert learned.drivers == {"CUDA0": LearnedSize(308 * MIB, last)}
    assert record.learned(gemma, with_driver(Hardware.simulate(ram=16 * GIB, vram=[24 * GIB]))).drivers == {}
    plan = predict(gemma, Launch.for_users(2, 2048), CARD, learned=learned)
    driver = next(a for a in plan.allocations if a.buffer == "driver")
    assert (driver.reserved_bytes, driver.certainty) == (308 * MIB, "learned")
    assert driver.reason.endswith(f"in run {last}")
    overhead, driver_in_force = in_force(record.history().runs)
    assert (overhead.what, driver_in_force.what) == ("overhead", "driver")
    assert driver_in_force.of == "CUDA0, NVIDIA 580.95.05, build 0abc123"


@pytest.mark.parametrize("version", ["NVIDIA 590.44.01", None])
def test_what_another_driver_took_is_not_used(gemma: Model, tmp_path: Path, version: str | None) -> None:
    record = Record(tmp_path)
    for _ in range(2):
        record.append(gemma, run_on_card(gemma, taken_mib=310), {})
    assert set(record.learned(gemma, CARD).drivers) == {"CUDA0"}
    other = with_driver(CARD, version)
    assert record.learned(gemma, other).drivers == {}
    for _ in range(2):
        record.append(gemma, run_on_card(gemma, hardware=other, taken_mib=350), {})
    learned = {"CUDA0"} if version else set()
    assert set(record.learned(gemma, other).drivers) == learned
    assert record.learned(gemma, CARD).drivers["CUDA0"].size_bytes == 310 * MIB  # should it ever come back
    told = [value.of for value in in_force(record.history().runs) if value.what == "driver"]
    assert told == ["CUDA0, NVIDIA 580.95.05, build 0abc123", *(f"CUDA0, {version}, build 0abc123" for _ in learned)]


def test_records_that_do_not_say_which_driver_it_was_are_read_and_teach_nothing_of_it(
    gemma: Model, tmp_path: Path
) -> None:
    record = Record(tmp_path)
    for _ in range(2):
        record.append(gemma, run_on_card(gemma, taken_mib=310), {})
    record.path.write_bytes(record.path.read_bytes().replace(f'"driver":"{DRIVER}",'.encode(), b""))
    runs = record.history().runs
    assert [run.lessons.drivers for run in runs] == [
        (DriverLesson(device="CUDA0", description="RTX 4090", size_bytes=310 * MIB),)
    ] * 2
    assert record.learned(gemma, CARD).drivers == {}
    assert not [value for value in in_force(runs) if value.what == "driver"]


def test_more_than_the_device_has_is_not_learned(gemma: Model, tmp_path: Path) -> None:
    assert run_on_card(gemma, taken_mib=9000, free_mib=20000, total_mib=24000).lessons.drivers == ()
    record = Record(tmp_path)
    for _ in range(2):
        record.append(gemma, run_on_card(gemma, taken_mib=310), {})
    for _ in range(2):  # as they were kept before
        record.append(gemma, run_on_card(gemma, taken_mib=320), {})
    kept = record.path.read_bytes()
    record.path.write_bytes(kept.replace(str(320 * MIB).encode(), str(1 << 45).encode()))
    assert [run.lessons.drivers[0].size_bytes for run in record.history().runs] == [310 * MIB] * 2 + [1 << 45] * 2
    assert record.learned(gemma, CARD).drivers["CUDA0"].size_bytes == 310 * MIB
    (driver,) = (value for value in in_force(record.history().runs) if value.what == "driver")
    assert driver.size_bytes == 310 * MIB


def test_two_cards_of_one_name_are_not_mixed() -> None:
    def lesson(size: int, card: str) -> DriverLesson:
        return DriverLesson(device="CUDA0", description=card, size_bytes=size)

    assert driver_told([("a", lesson(300 * MIB, "RTX 4090")), ("b", lesson(300 * MIB, "RTX 3090"))]) is None
    assert driver_told([("a", lesson(300 * MIB, "RTX 4090"))]) is None
    told = driver_told([("a", lesson(300 * MIB, "RTX 4090")), ("b", lesson(304 * MIB, "RTX 4090"))])
    assert told == LearnedSize(304 * MIB, "b")


def test_what_is_reached_over_a_network_teaches_nothing_of_drivers(gemma: Model) -> None:
    text = (Path(__file__).parents[2] / "data" / "logs" / "b11434-lv4-partial-offload.log").read_text(encoding="utf-8")
    machine = Hardware.simulate(ram=16 * GIB).with_accelerators(())
    plan = predict(gemma, Launch.for_users(2, 2048), machine, prompt_tokens=600)
    run = reconcile(plan, measured_as_planned(plan, log_text=text))
    assert read_log(text.splitlines()).memory_at_end
    assert run.lessons.drivers == ()


# Compute ----------------------------------------------------------------------------------------------------


def with_compute(plan: MemoryPlan, ratio: float, told: DryRun | None = None) -> Reconciliation:
    """A run whose build reserves that much more than the formula says."""
    measurement = measured_as_planned(plan)
    buffers = tuple(
        Buffer(kind=b.kind, device=b.device, size_bytes=round(b.size_bytes * ratio)) if b.kind == "compute" else b
        for b in measurement.log.buffers
    )
    return reconcile(plan, replace(measurement, log=replace(measurement.log, buffers=buffers)), told)


def plans(model: Model, hardware: Hardware, learned: Learned | None = None) -> list[MemoryPlan]:
    """Of two launches whose compute buffers differ in size."""
    launches = (Launch.for_users(2, 2048), replace(Launch.for_users(2, 2048), ubatch_size=1024))
    return [predict(model, x, hardware, prompt_tokens=2000, learned=learned or Learned()) for x in launches]


def test_a_factor_that_two_sizes_have_is_learned(gemma: Model, hardware: Hardware, tmp_path: Path) -> None:
    record = Record(tmp_path)
    small, large = plans(gemma, hardware)
    ids = [record.append(gemma, with_compute(small, 1.25), {})]
    record.append(gemma, with_compute(small, 1.25), {})  # the same once more says no more
    assert record.learned(gemma, hardware).compute == {}
    ids.append(record.append(gemma, with_compute(large, 1.251), {}))
    learned = record.learned(gemma, hardware, "0abc123")
    assert learned.compute["cpu"].ratio == pytest.approx(1.25, abs=0.001)
    assert set(ids) <= set(learned.compute["cpu"].runs)
    assert record.learned(gemma, hardware, "another").compute == {}
    again = predict(gemma, large.launch, hardware, prompt_tokens=2000, learned=learned)
    compute = next(a for a in again.allocations if a.component == "compute")
    assert compute.certainty == "learned"
    assert compute.reserved_bytes == pytest.approx(1.25 * large.bytes(component="compute"), rel=0.002)
    assert (compute.low_bytes or 0) <= compute.reserved_bytes <= (compute.high_bytes or 0)
    others = [a for a in again.allocations if a.component in ("weights", "kv", "output")]
    assert others == [a for a in large.allocations if a.component in ("weights", "kv", "output")]
    # A run that contradicts what it was planned with takes it away.
    record.append(gemma, with_compute(again, 0.9), {})
    assert record.learned(gemma, hardware).compute == {}


def test_a_term_is_not_learned_as_a_factor(gemma: Model, hardware: Hardware, tmp_path: Path) -> None:
    record = Record(tmp_path)
    small, large = plans(gemma, hardware)
    term = small.bytes(component="compute") // 4
    for plan in (small, large):
        record.append(gemma, with_compute(plan, 1 + term / plan.bytes(component="compute")), {})
    assert record.learned(gemma, hardware).compute == {}


def test_what_a_dry_run_says_needs_no_learning(gemma: Model, hardware: Hardware) -> None:
    (plan, _) = plans(gemma, hardware)
    reserved = round(plan.bytes(component="compute") * 1.25)
    figure = DryFigure(
        device="CPU", components=("compute",), size_bytes=reserved, low_bytes=reserved - MIB, high_bytes=reserved + MIB
    )
    run = with_compute(plan, 1.25, DryRun(way="llama-server", build="0abc123", figures=(figure,)))
    assert run.lessons.compute == ()
    row = next(row for row in run.reserved if row.component == "compute")
    assert row.cause == "this build's own dry run says the same: it reserves otherwise than the formula"


def test_an_exact_figure_is_never_corrected(gemma: Model, hardware: Hardware) -> None:
    (plan, _) = plans(gemma, hardware)
    correction = Correction(ratio=2.0, spread=0.01, runs=("a", "b"))
    for allocation in plan.allocations:
        for certainty in ("exact", "dry run", "learned"):
            assert correction.applied(replace(allocation, certainty=certainty)).certainty == certainty
        changed = correction.applied(allocation) != allocation
        assert changed == (allocation.component == "compute" and allocation.certainty == "estimated")


def test_agreement_with_the_formula_is_no_correction() -> None:
    def lesson(size: int, ratio: float) -> ComputeLesson:
        return ComputeLesson(device="CPU", predicted_bytes=size, reserved_bytes=round(size * ratio), corrected=False)

    assert correction_told([("a", lesson(MIB, 1.0)), ("b", lesson(2 * MIB, 1.0))]) is None
    assert correction_told([("a", lesson(MIB, 1.0)), ("b", lesson(2 * MIB, 1.5))]) is None
    assert correction_told([("a", lesson(MIB, 1.5)), ("b", lesson(2 * MIB, 1.5))]) is not None


# The process ------------------------------------------------------------------------------------------------


def test_each_set_of_accelerators_has_an_overhead_of_its_own(gemma: Model, hardware: Hardware, tmp_path: Path) -> None:
    record = Record(tmp_path)
    alone = predict(gemma, Launch.for_users(2, 2048), hardware, prompt_tokens=600)
    record.append(gemma, reconcile(alone, measured_as_planned(alone)), {})
    record.append(gemma, run_on_card(gemma, taken_mib=300), {})
    learned = record.learned(gemma, CARD)
    assert set(learned.overhead) == {(), ("cuda",)}
    for machine in (CARD, hardware):
        plan = predict(gemma, Launch.for_users(2, 2048), machine, learned=learned)
        assert next(a for a in plan.allocations if a.buffer == "process").certainty == "learned"
    only_alone = replace(learned, overhead={(): learned.overhead[()]})
    plan = predict(gemma, Launch.for_users(2, 2048), CARD, learned=only_alone)
    assert next(a for a in plan.allocations if a.buffer == "process").certainty == "estimated"
