from __future__ import annotations

import pytest

from planner import Hardware, Launch, Model, Verdict, predict
from planner.launch import resolve_context
from planner.memory import Learned, LearnedSize
from planner.memory.kv import kv_caches
from planner.memory.plan import Allocation, Component
from planner.memory.server import checkpoint_bytes
from planner.units import GIB, MIB

MACHINE = Hardware.simulate(ram=64 * GIB)
FOUR_OF_8K = Launch(ctx_size=32768, parallel=4)


def the(component: Component, model: Model, launch: Launch, prompt_tokens: int | None = None) -> Allocation:
    plan = predict(model, launch, MACHINE, prompt_tokens=prompt_tokens)
    (allocation,) = (allocation for allocation in plan.allocations if allocation.component == component)
    return allocation


@pytest.mark.parametrize(("tokens", "logged"), [(84, "1.232"), (512, "7.506"), (3000, "7.506")])
def test_a_checkpoint_is_as_large_as_the_server_logs_it(gemma: Model, tokens: int, logged: str) -> None:
    context = resolve_context(FOUR_OF_8K, 32768)
    caches = kv_caches(gemma.layout, FOUR_OF_8K, context)
    size = checkpoint_bytes(caches, gemma.layout, context, tokens)
    assert f"{size / MIB:.3f}" == logged


def test_checkpoints_grow_to_their_number_in_every_slot(gemma: Model) -> None:
    allocation = the("checkpoints", gemma, FOUR_OF_8K)
    assert (allocation.reserved_bytes, allocation.resident_bytes) == (0, 0)
    assert allocation.growth_bytes / MIB == pytest.approx(4 * 32 * 7.506, abs=0.1)
    assert allocation.certainty == "exact"  # as a limit
    assert "--ctx-checkpoints" in allocation.reason


def test_after_a_prompt_two_checkpoints_of_each_slot_are_in_memory_already(gemma: Model) -> None:
    allocation = the("checkpoints", gemma, FOUR_OF_8K, prompt_tokens=4096)
    assert allocation.resident_bytes / MIB == pytest.approx(4 * 2 * 7.506, abs=0.01)
    limit = the("checkpoints", gemma, FOUR_OF_8K).growth_bytes
    assert allocation.resident_bytes + allocation.growth_bytes == limit


def test_a_prompt_shorter_than_a_ubatch_leaves_one_checkpoint(gemma: Model) -> None:
    allocation = the("checkpoints", gemma, Launch(ctx_size=8192, parallel=1), prompt_tokens=88)
    assert f"{allocation.resident_bytes / MIB:.3f}" == "1.232"


@pytest.mark.parametrize("launch", [Launch(swa_full=True), Launch(ctx_checkpoints=0)])
def test_without_checkpoints_nothing_grows_but_the_prompt_cache(gemma: Model, launch: Launch) -> None:
    plan = predict(gemma, launch, MACHINE)
    assert plan.growth_bytes(component="checkpoints") == 0
    assert plan.growth_bytes() == 8192 * MIB


def test_a_model_without_windows_takes_no_checkpoints(smollm: Model) -> None:
    assert predict(smollm, Launch(), MACHINE).growth_bytes() == 8192 * MIB


def test_the_prompt_cache_grows_to_its_limit(smollm: Model) -> None:
    allocation = the("prompt_cache", smollm, Launch(cache_ram=512))
    assert (allocation.reserved_bytes, allocation.growth_bytes) == (0, 512 * MIB)
    assert allocation.reason == "finished conversations are kept up to 512.0 MiB (--cache-ram 512)"


def test_a_prompt_cache_that_is_off_is_not_there(smollm: Model) -> None:
    assert predict(smollm, Launch(cache_ram=0), MACHINE).growth_bytes() == 0


def test_a_prompt_cache_without_a_limit_is_told(smollm: Model) -> None:
    plan = predict(smollm, Launch(cache_ram=-1), MACHINE)
    assert "With --cache-ram -1 the prompt cache grows until memory is full." in plan.notes
    assert the("prompt_cache", smollm, Launch(cache_ram=-1)).reason == "grows without limit (--cache-ram -1)"


def test_a_prompt_cache_without_a_limit_fits_no_machine_well(smollm: Model) -> None:
    plan = predict(smollm, Launch(cache_ram=-1), Hardware.simulate(ram=10**6 * GIB))
    assert plan.verdict is Verdict.TIGHT
    assert plan.verdict_reason.endswith(
        " stay free at first, and the prompt cache may take all of it (--cache-ram -1)."
    )


def test_the_process_is_estimated_until_it_was_measured(gemma: Model, smollm: Model) -> None:
    def process(model: Model, learned: int | None) -> Allocation:
        known = Learned(overhead={} if learned is None else {(): LearnedSize(learned, "0a1b2c3d")})
        plan = predict(model, Launch(parallel=1), MACHINE, learned=known)
        return next(allocation for allocation in plan.allocations if allocation.buffer == "process")

    assert process(gemma, None).reserved_bytes / MIB == pytest.approx(66, abs=1)
    assert process(smollm, None).reserved_bytes / MIB == pytest.approx(36, abs=1)
    assert process(gemma, None).certainty == "estimated"
    learned = process(gemma, 70 * MIB)
    assert (learned.reserved_bytes, learned.certainty) == (70 * MIB, "learned")
    assert learned.reason == "what this model and engine held beside their buffers in run 0a1b2c3d"


@pytest.mark.parametrize(("slots", "mib"), [(1, 1.0), (4, 4.0), (64, 64.0)])
def test_output_is_a_row_of_logits_for_each_slot(gemma: Model, slots: int, mib: float) -> None:
    launch = Launch(ctx_size=65536, parallel=slots)
    assert predict(gemma, launch, MACHINE).bytes(component="output") == mib * MIB


@pytest.mark.parametrize(("ubatch", "mib"), [(512, 51.3), (2048, 211.1)])
def test_compute_grows_with_the_ubatch(gemma: Model, ubatch: int, mib: float) -> None:
    launch = Launch(ctx_size=32768, parallel=1, ubatch_size=ubatch)
    allocation = the("compute", gemma, launch)
    assert allocation.reserved_bytes / MIB == pytest.approx(mib, abs=0.1)
    assert allocation.certainty == "estimated"
    assert allocation.low_bytes is not None and allocation.high_bytes is not None
    assert allocation.low_bytes < allocation.reserved_bytes < allocation.high_bytes


def test_a_short_prompt_touches_less_of_the_compute_buffer_than_is_reserved(gemma: Model) -> None:
    launch = Launch(ctx_size=32768, parallel=1)
    whole, short = the("compute", gemma, launch), the("compute", gemma, launch, prompt_tokens=1024)
    assert whole.resident_bytes == whole.reserved_bytes == short.reserved_bytes
    assert short.resident_bytes < short.reserved_bytes
