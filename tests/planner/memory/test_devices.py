"""A verdict for every device, each with memory of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner import Hardware, Launch, MemoryPlan, Model, Verdict, predict
from planner.memory.weights import LAZY_BYTES
from planner.model.ggml_types import type_named
from planner.model.gguf import GgufHeader, TensorInfo
from planner.units import GIB, MIB

QUIET = Launch(ctx_size=8192, parallel=1, cache_ram=0, ctx_checkpoints=0)
CARD = Hardware.simulate(ram=16 * GIB, vram=[8 * GIB])


def on_card(plan: MemoryPlan, usable_bytes: int) -> MemoryPlan:
    """The plan on a machine whose first card has so much free."""
    pools = [replace(pool, usable_bytes=usable_bytes) for pool in plan.hardware.pools if pool.name == "CUDA0"]
    others = [pool for pool in plan.hardware.pools if pool.name != "CUDA0"]
    return replace(plan, hardware=replace(plan.hardware, pools=(*pools, *others)))


def verdicts(plan: MemoryPlan) -> dict[str, str]:
    return {device.name: device.verdict.value for device in plan.devices}


@pytest.fixture(scope="module")
def offloaded(gemma: Model) -> MemoryPlan:
    """All layers on one card, flags written out so that nothing grows."""
    return predict(gemma, QUIET, CARD)


def test_devices_come_in_the_order_of_the_machine(gemma: Model, offloaded: MemoryPlan) -> None:
    assert [device.name for device in offloaded.devices] == ["CUDA0", "CPU"]
    assert [device.is_cpu for device in offloaded.devices] == [False, True]
    two = predict(gemma, QUIET, Hardware.simulate(ram=16 * GIB, vram=[8 * GIB, 8 * GIB]))
    assert [device.name for device in two.devices] == ["CUDA0", "CUDA1", "CPU"]
    assert [allocation.device for allocation in two.allocations] == sorted(
        (allocation.device for allocation in two.allocations), key=["CUDA0", "CUDA1", "CPU"].index
    )


def test_the_devices_hold_everything_between_them(offloaded: MemoryPlan) -> None:
    assert sum(device.total_bytes for device in offloaded.devices) == offloaded.bytes()
    card, processor = offloaded.devices
    assert card.components["kv"] == offloaded.bytes(component="kv") > 0
    assert "kv" not in processor.components
    assert card.total_bytes == offloaded.bytes(device="CUDA0") == offloaded.needed_bytes(card.pool)
    assert processor.total_bytes == offloaded.bytes(device="CPU")


def test_a_launch_that_fits_everywhere_fits(offloaded: MemoryPlan) -> None:
    assert verdicts(offloaded) == {"CUDA0": "fits", "CPU": "fits"}
    assert offloaded.verdict is Verdict.FITS


def test_one_device_that_is_too_small_decides(offloaded: MemoryPlan) -> None:
    needed = offloaded.bytes(device="CUDA0")
    plan = on_card(offloaded, needed - 100 * MIB)
    assert verdicts(plan) == {"CUDA0": "too_big", "CPU": "fits"}
    assert plan.verdict is Verdict.TOO_BIG
    assert plan.verdict_reason == "100.0 MiB more CUDA0 memory is needed than is usable now."


def test_one_device_without_a_margin_makes_it_tight(offloaded: MemoryPlan) -> None:
    plan = on_card(offloaded, offloaded.bytes(device="CUDA0") + 10 * MIB)
    assert verdicts(plan) == {"CUDA0": "tight", "CPU": "fits"}
    assert plan.verdict is Verdict.TIGHT
    assert plan.verdict_reason.startswith("Only 10.0 MiB of CUDA0 memory stay free")


def test_the_reason_is_that_of_the_device_that_is_worst_off(gemma: Model) -> None:
    plan = predict(gemma, QUIET, Hardware.simulate(ram=16 * GIB, vram=[8 * GIB, 10 * MIB]))
    # By free memory the small card gets a single layer or none; a share says otherwise.
    even = predict(gemma, replace(QUIET, tensor_split=(1, 1)), plan.hardware)
    assert verdicts(even) == {"CUDA0": "fits", "CUDA1": "too_big", "CPU": "fits"}
    assert "more CUDA1 memory is needed" in even.verdict_reason


def test_a_device_that_nothing_lies_on_has_no_verdict(gemma: Model) -> None:
    plan = predict(gemma, replace(QUIET, device="none"), CARD)
    assert [device.name for device in plan.devices] == ["CPU"]
    assert plan.verdict is Verdict.FITS


def test_a_buffer_larger_than_the_device_can_allocate_is_too_big_though_the_sum_fits(gemma: Model) -> None:
    launch = replace(QUIET, ctx_size=32768, ubatch_size=2048)
    largest = max(a.reserved_bytes for a in predict(gemma, launch, CARD).allocations if a.component == "compute")
    for limit, expected in ((largest - 1, Verdict.TOO_BIG), (largest, Verdict.FITS)):
        machine = Hardware.simulate(ram=16 * GIB, vram=[8 * GIB], max_allocation=limit)
        plan = predict(gemma, launch, machine)
        card, processor = plan.devices
        assert (card.verdict, processor.verdict, plan.verdict) == (expected, Verdict.FITS, expected)
        assert card.pool_verdict is Verdict.FITS
    assert f"takes {largest / MIB:.1f} MiB in one piece" in _reason_of(gemma, launch, largest - 1)


def _reason_of(model: Model, launch: Launch, limit: int) -> str:
    reason = predict(model, launch, Hardware.simulate(ram=16 * GIB, vram=[8 * GIB], max_allocation=limit))
    return reason.verdict_reason


def test_weights_are_split_over_several_buffers_and_never_too_large_for_one(gemma: Model) -> None:
    limit = 200 * MIB
    plan = predict(gemma, QUIET, Hardware.simulate(ram=16 * GIB, vram=[8 * GIB], max_allocation=limit))
    assert plan.bytes(component="weights", device="CUDA0") > limit
    assert plan.verdict is Verdict.FITS


def test_what_grows_is_the_host_s_alone(gemma: Model) -> None:
    plan = predict(gemma, Launch(ctx_size=8192, parallel=1), Hardware.simulate(ram=4 * GIB, vram=[8 * GIB]))
    assert plan.growth_bytes(device="CUDA0") == 0
    assert verdicts(plan) == {"CUDA0": "fits", "CPU": "tight"}
    assert "of host memory stay free at first, but" in plan.verdict_reason


def test_without_a_limit_only_the_host_is_tight(gemma: Model) -> None:
    plan = predict(gemma, replace(QUIET, cache_ram=-1), CARD)
    assert verdicts(plan) == {"CUDA0": "fits", "CPU": "tight"}
    assert "the prompt cache may take all of it (--cache-ram -1)" in plan.verdict_reason


def test_the_driver_takes_memory_of_every_card_that_is_used(gemma: Model) -> None:
    two = Hardware.simulate(ram=16 * GIB, vram=[8 * GIB, 8 * GIB])
    drivers = [a for a in predict(gemma, QUIET, two).allocations if a.buffer == "driver"]
    assert [driver.device for driver in drivers] == ["CUDA0", "CUDA1"]
    assert all(driver.certainty == "estimated" and driver.low_bytes and driver.high_bytes for driver in drivers)


def test_a_table_that_is_read_on_demand_is_not_needed_at_the_start() -> None:
    rows = LAZY_BYTES // 4096 + 1
    f32 = type_named("f32")
    keys = {
        "context_length": 4096,
        "embedding_length": 512,
        "block_count": 2,
        "attention.head_count": 8,
        "attention.sliding_window": 0,
    }
    header = GgufHeader(
        version=3,
        metadata={"general.architecture": "gemma4", **{f"gemma4.{key}": value for key, value in keys.items()}},
        tensors=(
            TensorInfo("per_layer_token_embd.weight", (1024, rows), f32, 0),
            TensorInfo("token_embd.weight", (512, 8), f32, rows * 4096),
        ),
        alignment=32,
        data_offset=0,
    )
    plan = predict(Model(path=Path("table.gguf"), header=header), QUIET, Hardware.simulate(ram=GIB))
    [table] = [allocation for allocation in plan.allocations if allocation.on_demand]
    assert table.reserved_bytes == rows * 4096 > GIB
    assert (table.needed_bytes, table.resident_bytes) == (0, 0)
    assert plan.needed_bytes(plan.hardware.host) == plan.bytes() - table.reserved_bytes
    assert plan.verdict is Verdict.FITS
