"""An architecture of tomorrow: what its own tensors tell, and never a refusal of ours."""

from __future__ import annotations

from typing import Any

import made
import pytest

from planner import Hardware, Launch, MemoryPlan, Model, Verdict, predict
from planner.engine.dry_figures import DryFigure, DryRun
from planner.reconcile.dry_comparison import compare
from planner.units import GIB, MIB

LARGE = Hardware.simulate(ram=1024 * GIB)
LAUNCH = Launch(ctx_size=8192, parallel=1)


def tomorrow(layers: int = 4, *, attention: bool = True, **keys: Any) -> Model:
    """A model of an architecture that nobody knows."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (512, 1000)}
    for layer in range(layers):
        shapes[f"blk.{layer}.ffn_up.weight"] = (512, 1024)
        if attention:
            shapes[f"blk.{layer}.attn_k.weight"] = (512, 128)
            shapes[f"blk.{layer}.attn_v.weight"] = (512, 64)
    given = {"block_count": layers, "context_length": 4096, **keys}
    metadata = {f"tomorrow.{key}": value for key, value in given.items() if value is not None}
    return made.model({"general.architecture": "tomorrow", **metadata}, shapes)


def reason(plan: MemoryPlan) -> str:
    assert plan.verdict is Verdict.UNKNOWN
    assert plan.refusal == ""
    return plan.verdict_reason


def test_its_weights_are_exact_and_its_cache_is_a_range() -> None:
    model = tomorrow()
    plan = predict(model, LAUNCH, LARGE)
    assert reason(plan) == (
        "The architecture 'tomorrow' is not known to this version: its weights are exact, its KV cache is a range "
        "from the shapes of its tensors, its compute buffers are not known. llama.cpp may know it: "
        "planner plan MODEL --dry-run asks."
    )
    assert plan.bytes(component="weights") == model.tensor_bytes
    [cache] = [allocation for allocation in plan.allocations if allocation.component == "kv"]
    most = 8192 * 4 * (128 + 64) * 2
    assert (cache.low_bytes, cache.reserved_bytes, cache.high_bytes) == (most // 10, most, most)
    assert cache.certainty == "estimated"
    assert cache.reason == "8,192 cells x 1,536 bytes from the attn_k and attn_v tensors of 4 layers, at most"
    assert plan.n_ctx_slot == 4096


def test_its_cache_follows_the_cache_type_and_the_slots() -> None:
    f16 = predict(tomorrow(), LAUNCH, LARGE).bytes(component="kv")
    assert predict(tomorrow(), LAUNCH.with_cache_type("q8_0"), LARGE).bytes(component="kv") == f16 * 17 // 32
    assert predict(tomorrow(), Launch(ctx_size=16384, parallel=2), LARGE).bytes(component="kv") == 2 * f16


def test_its_layers_lie_on_devices_with_their_caches() -> None:
    two = Hardware.simulate(ram=64 * GIB, vram=[8 * GIB])
    plan = predict(tomorrow(), Launch(ctx_size=8192, parallel=1, n_gpu_layers=3), two)
    on_card = plan.bytes(component="kv", device="CUDA0")
    assert on_card == plan.bytes(component="kv", device="CPU") == plan.bytes(component="kv") // 2
    assert [device.name for device in plan.devices] == ["CUDA0", "CPU"]


@pytest.mark.parametrize("count", [None, 0, 10**12, -1, 1.5, "many", True])
def test_a_number_of_layers_that_is_missing_or_makes_no_sense_is_counted_in_the_tensors(count: object) -> None:
    model = tomorrow(block_count=count)
    whole, plan = (predict(known, LAUNCH, LARGE) for known in (tomorrow(), model))
    assert reason(plan) == reason(whole)
    assert plan.allocations == whole.allocations


@pytest.mark.parametrize("length", [None, 0, "long"])
def test_a_trained_context_that_is_missing_is_said_to_be(length: object) -> None:
    model = tomorrow(context_length=length)
    plan = predict(model, Launch(parallel=1), LARGE)
    assert reason(plan) == (
        "The architecture 'tomorrow' is not known to this version: its weights are exact, its context is not named "
        "(tomorrow.context_length; --ctx-size says one), nor its KV cache, its compute buffers are not known. "
        "llama.cpp may know it: planner plan MODEL --dry-run asks."
    )
    assert plan.context is None
    assert plan.bytes() == plan.bytes(component="weights") == model.tensor_bytes
    said = predict(model, LAUNCH, LARGE)
    assert said.bytes(component="kv") == predict(tomorrow(), LAUNCH, LARGE).bytes(component="kv")
    assert said.n_ctx_slot == 8192


def test_without_attention_tensors_no_cache_is_guessed() -> None:
    plan = predict(tomorrow(attention=False), LAUNCH, LARGE)
    assert "its KV cache is not told by its tensors" in reason(plan)
    assert plan.bytes(component="kv") == 0


def test_a_file_that_says_nothing_at_all_is_not_refused() -> None:
    plan = predict(made.model({"general.architecture": "tomorrow"}), Launch(), LARGE)
    assert "The architecture 'tomorrow' is not known" in reason(plan)
    assert plan.context is None


def test_weights_that_do_not_fit_are_too_big_whatever_else_is_unknown() -> None:
    model = tomorrow()
    assert predict(model, LAUNCH, Hardware.simulate(ram=16 * MIB)).verdict is Verdict.UNKNOWN
    plan = predict(model, LAUNCH, Hardware.simulate(ram=4 * MIB))
    assert plan.verdict is Verdict.TOO_BIG
    assert "more host memory is needed than is usable now" in plan.verdict_reason


def test_a_cache_that_would_not_fit_at_most_proves_nothing() -> None:
    model = tomorrow()
    plan = predict(model, LAUNCH, LARGE)
    least = plan.bytes() - plan.bytes(component="kv") * 9 // 10
    assert predict(model, LAUNCH, Hardware.simulate(ram=least + MIB)).verdict is Verdict.UNKNOWN
    assert predict(model, LAUNCH, Hardware.simulate(ram=least - MIB)).verdict is Verdict.TOO_BIG


def test_a_device_that_is_not_there_is_refused_for_every_architecture() -> None:
    for model in (tomorrow(), made.llama()):
        plan = predict(model, Launch(device="CUDA7"), LARGE)
        assert plan.verdict is Verdict.REFUSED
        assert "'CUDA7'" in plan.verdict_reason


def test_where_llama_cpp_knows_it_its_own_figures_are_taken_and_no_verdict_is_claimed() -> None:
    model = tomorrow()
    size = 18 * MIB
    figure = DryFigure(device="CPU", components=("compute",), size_bytes=size, low_bytes=size, high_bytes=size)
    answer = DryRun(way="llama-server", build="abc1234", figures=(figure,))
    plan = compare(model, predict(model, LAUNCH, LARGE), answer).plan
    assert plan.bytes(component="compute") == size
    assert "its own figures are in the table" in reason(plan)
