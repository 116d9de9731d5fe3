from __future__ import annotations

from dataclasses import replace

import made
import pytest

from planner import Hardware, Launch, MemoryPlan, Model, Verdict, predict
from planner.hardware import Pool
from planner.units import GIB, MIB

LARGE = Hardware.simulate(ram=1024 * GIB)
QUIET = Launch(ctx_size=8192, parallel=1, cache_ram=0, ctx_checkpoints=0)
"""Nothing of it grows."""


def with_usable(usable_bytes: int | None) -> Hardware:
    pool = Pool(name="host", total_bytes=16 * GIB, usable_bytes=usable_bytes, source="a test")
    return replace(LARGE, pools=(pool,))


@pytest.fixture(scope="module")
def needed(gemma: Model) -> int:
    return predict(gemma, QUIET, LARGE).bytes()


def verdict(plan: MemoryPlan) -> tuple[str, str]:
    (device,) = plan.devices
    assert device.verdict is plan.verdict
    return plan.verdict.value, plan.verdict_reason


def test_more_free_than_the_margin_fits_and_growth_is_told_only_where_there_is_some(gemma: Model, needed: int) -> None:
    machine = with_usable(needed + 2 * GIB)
    assert verdict(predict(gemma, QUIET, machine)) == ("fits", "2.0 GiB of host memory stay free.")
    grows = replace(QUIET, cache_ram=512)
    assert verdict(predict(gemma, grows, machine)) == (
        "fits",
        "2.0 GiB of host memory stay free, and 1.5 GiB after growth.",
    )


def test_less_free_than_the_margin_is_tight(gemma: Model, needed: int) -> None:
    plan = predict(gemma, QUIET, with_usable(needed + 10 * MIB))
    name, reason = verdict(plan)
    assert name == "tight"
    assert reason.startswith("Only 10.0 MiB of host memory stay free, less than the ")
    assert reason.endswith(" MiB that keep a machine well.")


def test_a_machine_that_is_used_to_the_last_byte_is_tight(gemma: Model, needed: int) -> None:
    assert predict(gemma, QUIET, with_usable(needed)).verdict is Verdict.TIGHT


def test_a_byte_too_much_is_too_big(gemma: Model, needed: int) -> None:
    assert predict(gemma, QUIET, with_usable(needed - 1)).verdict is Verdict.TOO_BIG
    plan = predict(gemma, QUIET, with_usable(needed - 100 * MIB))
    assert verdict(plan) == ("too_big", "100.0 MiB more host memory is needed than is usable now.")


def test_growth_beyond_memory_is_tight(gemma: Model, needed: int) -> None:
    launch = replace(QUIET, cache_ram=8192)
    plan = predict(gemma, launch, with_usable(needed + 4 * GIB))
    assert verdict(plan) == (
        "tight",
        "4.0 GiB of host memory stay free at first, but 8.0 GiB may come on top later.",
    )
    assert predict(gemma, launch, with_usable(needed + 8 * GIB)).verdict is Verdict.FITS


def test_a_prompt_cache_without_a_limit_is_tight_however_much_is_free(gemma: Model, needed: int) -> None:
    plan = predict(gemma, replace(QUIET, cache_ram=-1), with_usable(needed + 8 * GIB))
    assert verdict(plan) == (
        "tight",
        "8.0 GiB of host memory stay free at first, and the prompt cache may take all of it (--cache-ram -1).",
    )
    assert predict(gemma, replace(QUIET, cache_ram=-1), with_usable(needed - 1)).verdict is Verdict.TOO_BIG


def test_memory_that_no_probe_could_read_gives_no_verdict(gemma: Model) -> None:
    plan = predict(gemma, QUIET, with_usable(None))
    assert verdict(plan) == ("unknown", "How much host memory is usable is not known (a test).")
    assert plan.headroom_bytes(plan.hardware.host) is None


def test_a_refusal_comes_before_any_arithmetic(gemma: Model) -> None:
    launch = replace(QUIET, cache_type_v="q8_0", flash_attn="off")
    assert predict(gemma, launch, with_usable(1)).verdict is Verdict.REFUSED


def test_totals_are_the_sums_of_the_allocations(gemma: Model) -> None:
    plan = predict(gemma, Launch(ctx_size=32768, parallel=2), LARGE)
    (device,) = plan.devices
    components = ("weights", "kv", "compute", "output", "overhead", "prompt_cache", "checkpoints")
    assert set(device.components) == set(components)
    assert sum(plan.bytes(component=name) for name in components) == plan.bytes() == device.total_bytes  # type: ignore[arg-type]
    assert plan.bytes(device="CPU") == plan.bytes()
    assert plan.bytes(device="CUDA0") == plan.bytes(component="state") == 0
    assert plan.needed_bytes(plan.hardware.host) == plan.bytes()
    assert device.components["kv"] == plan.bytes(component="kv", device="CPU") == (96 + 2 * 15) * MIB
    assert plan.resident_bytes() == sum(allocation.resident_bytes for allocation in plan.allocations)
    assert plan.headroom_bytes(plan.hardware.host) == 1024 * GIB - plan.bytes()


def test_every_allocation_gives_its_reason(gemma: Model) -> None:
    plan = predict(gemma, Launch(), LARGE)
    assert all(allocation.reason for allocation in plan.allocations)
    assert all(0 <= allocation.resident_bytes <= allocation.reserved_bytes for allocation in plan.allocations)


# What contradicts itself ------------------------------------------------------------------------------------


def test_keys_where_the_metadata_know_no_kv_head_contradict_them() -> None:
    shapes = {f"blk.{layer}.attn_k.weight": (512, 512) for layer in (0, 2)}
    model = made.model(dict(made.llama(attention__head_count_kv=(8, 8, 0, 8)).metadata), shapes)
    plan = predict(model, QUIET, LARGE)
    assert plan.verdict is Verdict.REFUSED
    assert plan.verdict_reason == (
        "The metadata contradict the tensors: head_count_kv is 0 where blk.2.attn_k.weight lies. This file will not "
        "load: convert or download it again."
    )
    assert plan.context is None
    assert plan.bytes() == plan.bytes(component="weights") == model.tensor_bytes


def test_a_delta_net_has_keys_without_a_kv_head() -> None:
    shapes = {"blk.2.attn_k.weight": (512, 512), "blk.2.ssm_a": (8, 1)}
    model = made.model(dict(made.llama(attention__head_count_kv=(8, 8, 0, 8)).metadata), shapes)
    assert predict(model, QUIET, LARGE).verdict is Verdict.FITS


# Notes -----------------------------------------------------------------------------------------------------


def test_context_beyond_the_trained_one_is_reserved_for_nothing(gemma: Model) -> None:
    plan = predict(gemma, Launch(ctx_size=65536, parallel=1), LARGE)
    assert plan.n_ctx_slot == 32768
    assert plan.notes == (
        "The model was trained on 32,768 tokens: llama-server gives each person no more, and the 32,768 beyond "
        "are reserved for nothing.",
    )
    assert predict(gemma, Launch(ctx_size=65536, parallel=2), LARGE).notes == ()


def test_a_ghost_and_a_file_without_tensors_are_said_to_be_that() -> None:
    plan = predict(made.llama(), Launch(), LARGE)
    assert plan.notes == ("The file holds metadata and no tensor, so its weights count as 0.",)
    assert plan.bytes(component="weights") == 0
    ghost = made.model({**made.llama().metadata, "planner.ghost": True})
    assert (
        "This is a ghost: a true header with a hole where the weights would be."
        in predict(ghost, Launch(), LARGE).notes
    )
