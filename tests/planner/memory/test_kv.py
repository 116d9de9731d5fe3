from __future__ import annotations

from typing import Any

import made
import pytest

from planner import Hardware, Launch, MemoryPlan, Model, Verdict, predict
from planner.launch import CACHE_TYPES, resolve_context
from planner.memory.kv import kv_caches
from planner.units import GIB, MIB

MACHINE = Hardware.simulate(ram=1024 * GIB)


def plan_of(model: Model, **settings: Any) -> MemoryPlan:
    return predict(model, Launch(**settings), MACHINE)


def kv_mib(model: Model, **settings: Any) -> float:
    return round(plan_of(model, **settings).bytes(component="kv") / MIB, 2)


# By hand: 3 dense layers and 15 with a window of 512, each with 256 elements of K and of V per token.


@pytest.mark.parametrize(("cache_type", "mib"), [("f16", 111.00), ("q8_0", 58.97), ("q4_0", 31.22)])
def test_gemma_with_32k_for_one(gemma: Model, cache_type: str, mib: float) -> None:
    """f16: 32768 x 3 x 1 KiB = 96 MiB and 1024 x 15 x 1 KiB = 15 MiB."""
    assert kv_mib(gemma, ctx_size=32768, parallel=1, cache_type_k=cache_type, cache_type_v=cache_type) == mib


def test_gemma_with_32k_divided_among_four_has_four_windows(gemma: Model) -> None:
    assert kv_mib(gemma, ctx_size=32768, parallel=4) == 156.00  # 96 + 4 x 15


def test_gemma_with_slots_left_out_has_one_cache_with_four_windows(gemma: Model) -> None:
    assert kv_mib(gemma, ctx_size=32768) == 133.50  # 96 + 2560 cells x 15 KiB


def test_gemma_with_swa_full_keeps_the_whole_context_everywhere(gemma: Model) -> None:
    assert kv_mib(gemma, ctx_size=32768, parallel=1, swa_full=True) == 576.00  # 32768 x 18 KiB


def test_the_two_caches_are_named_as_llama_cpp_names_them(gemma: Model, smollm: Model) -> None:
    def names(model: Model) -> list[str]:
        plan = plan_of(model, ctx_size=4096, parallel=2)
        return [allocation.buffer for allocation in plan.allocations if allocation.component == "kv"]

    assert (names(gemma), names(smollm)) == (["non-SWA KV", "SWA KV"], ["KV"])


def test_the_reason_can_be_checked_by_hand(gemma: Model) -> None:
    plan = plan_of(gemma, ctx_size=32768, parallel=4)
    reasons = [allocation.reason for allocation in plan.allocations if allocation.component == "kv"]
    assert reasons == [
        "3 layers: 8,192 cells x 4 streams x (1,536 + 1,536) bytes of K and V per token",
        "15 layers: 1,024 cells x 4 streams x (7,680 + 7,680) bytes of K and V per token",
    ]
    assert plan.bytes(component="kv") == 8192 * 4 * (1536 + 1536) + 1024 * 4 * (7680 + 7680)


def test_keys_and_values_may_have_different_types(smollm: Model) -> None:
    mixed = kv_mib(smollm, ctx_size=8192, parallel=1, cache_type_k="q8_0", cache_type_v="f16")
    alike = [kv_mib(smollm, ctx_size=8192, parallel=1, cache_type_k=t, cache_type_v=t) for t in ("q8_0", "f16")]
    assert mixed == pytest.approx(sum(alike) / 2, abs=0.01)


def test_a_window_cache_is_never_longer_than_the_context(gemma: Model) -> None:
    def cells(ctx_size: int, **settings: Any) -> int:
        launch = Launch(ctx_size=ctx_size, **settings)
        whole, window = kv_caches(gemma.layout, launch, resolve_context(launch, 32768))
        assert (whole.windowed, window.windowed) == (False, True)
        assert whole.cells >= window.cells
        return window.cells

    assert cells(512, parallel=1) == 512
    assert cells(8192, parallel=1) == 1024
    assert cells(8192, parallel=1, ubatch_size=2048) == 2560
    assert cells(65536, parallel=3, kv_unified=True) == 2048  # 3 x 512 + 512
    assert cells(65536, parallel=3) == 1024


def test_without_flash_attention_v_is_as_wide_as_the_widest_layer() -> None:
    model = made.llama(attention__head_count_kv=(8, 2, 2, 2))
    on = plan_of(model, ctx_size=4096, parallel=1, flash_attn="on").bytes(component="kv")
    off = plan_of(model, ctx_size=4096, parallel=1, flash_attn="off").bytes(component="kv")
    k_and_v = 4096 * 2 * 64 * (8 + 2 + 2 + 2)
    assert on == 2 * k_and_v
    assert off == k_and_v + 4096 * 2 * 64 * 8 * 4


def test_a_model_whose_every_layer_has_a_window_has_no_dense_cache() -> None:
    model = made.model(
        {
            "general.architecture": "gemma3",
            "gemma3.context_length": 4096,
            "gemma3.embedding_length": 64,
            "gemma3.block_count": 2,
            "gemma3.attention.head_count": 4,
            "gemma3.attention.sliding_window": 256,
            "gemma3.attention.sliding_window_pattern": (True, True),
        }
    )
    plan = plan_of(model, ctx_size=4096, parallel=1)
    assert [allocation.buffer for allocation in plan.allocations if allocation.component == "kv"] == ["SWA KV"]


# Refusals: each names its way out -------------------------------------------------------------------------


@pytest.mark.parametrize("cache_type", [name for name in CACHE_TYPES if name not in ("f32", "f16", "bf16")])
def test_a_quantised_v_needs_flash_attention(gemma: Model, cache_type: str) -> None:
    plan = plan_of(gemma, cache_type_v=cache_type, flash_attn="off")
    assert plan.verdict is Verdict.REFUSED
    assert plan.verdict_reason == (
        f"llama.cpp refuses a {cache_type} V cache without flash attention: "
        "leave --flash-attn at auto, or use --cache-type-v f16."
    )


def test_a_quantised_k_does_not_need_flash_attention(gemma: Model) -> None:
    assert plan_of(gemma, cache_type_k="q8_0", flash_attn="off").verdict is Verdict.FITS


@pytest.mark.parametrize(("letter", "flag"), [("K", "cache_type_k"), ("V", "cache_type_v")])
def test_heads_that_are_not_whole_blocks_cannot_be_quantised(letter: str, flag: str) -> None:
    model = made.llama(attention__key_length=80, attention__value_length=80)
    plan = plan_of(model, **{flag: "q8_0"})
    assert plan.verdict is Verdict.REFUSED
    assert plan.verdict_reason == (
        f"llama.cpp refuses a q8_0 {letter} cache for heads of 80 elements, which are not whole blocks of 32: "
        f"use --{flag.replace('_', '-')} f16."
    )
    assert plan_of(model).verdict is Verdict.FITS


def test_without_flash_attention_only_the_whole_row_of_k_must_be_blocks() -> None:
    heads_of_80 = made.llama(attention__key_length=80, attention__value_length=80)
    assert plan_of(heads_of_80, cache_type_k="q8_0", flash_attn="off").verdict is Verdict.FITS  # 8 x 80 = 20 x 32
    odd = made.llama(attention__key_length=81, attention__value_length=81, attention__head_count_kv=1)
    plan = plan_of(odd, cache_type_k="q8_0", flash_attn="off")
    assert plan.verdict is Verdict.REFUSED
    assert plan.verdict_reason == (
        "llama.cpp refuses a q8_0 K cache for rows of 81 elements, which are not whole blocks of 32: "
        "use --cache-type-k f16."
    )


DEEPSEEK2 = {
    "block_count": 2,
    "context_length": 4096,
    "embedding_length": 512,
    "attention.head_count": 8,
    "attention.head_count_kv": 1,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
}
LATENT = made.model({"general.architecture": "deepseek2", **{f"deepseek2.{k}": v for k, v in DEEPSEEK2.items()}})


def test_latent_attention_caches_keys_alone() -> None:
    plan = plan_of(LATENT, ctx_size=4096, parallel=1)
    assert plan.bytes(component="kv") == 4096 * 2 * 576 * 2
    [cache] = [allocation for allocation in plan.allocations if allocation.component == "kv"]
    assert cache.reason == "2 layers: 4,096 cells x 1 stream x (2,304 + 0) bytes of K and V per token"


def test_latent_attention_takes_one_type_for_both() -> None:
    plan = plan_of(LATENT, cache_type_k="q8_0")
    assert plan.verdict is Verdict.REFUSED
    assert plan.verdict_reason == (
        "llama.cpp refuses different types for K (q8_0) and V (f16) on this model: use --cache-type-v q8_0."
    )
    both = plan_of(LATENT, ctx_size=4096, parallel=1, cache_type_k="q8_0", cache_type_v="q8_0")
    assert both.bytes(component="kv") == 4096 * 2 * 576 // 32 * 34


def test_a_model_without_flash_attention_has_no_quantised_v() -> None:
    keys = dict(made.llama().metadata, **{"general.architecture": "grok"})
    grok = made.model({key.replace("llama.", "grok."): value for key, value in keys.items()})
    plan = plan_of(grok, cache_type_v="q8_0")
    assert plan.verdict is Verdict.REFUSED
    assert plan.verdict_reason == (
        "This model cannot use flash attention, so V cannot be q8_0: use --cache-type-v f16."
    )
    assert plan_of(grok, cache_type_k="q8_0").verdict is Verdict.FITS


def test_a_server_has_at_most_256_slots(gemma: Model) -> None:
    assert plan_of(gemma, ctx_size=65536, parallel=256).refusal == ""
    plan = plan_of(gemma, ctx_size=65536, parallel=257)
    assert plan.verdict is Verdict.REFUSED
    assert plan.verdict_reason == "llama.cpp serves at most 256 slots, not 257: use fewer."


def test_a_model_that_llama_cpp_would_not_load_is_refused_with_its_reason() -> None:
    plan = plan_of(made.llama(context_length=None))
    assert plan.verdict is Verdict.REFUSED
    assert "llama.context_length" in plan.verdict_reason
    assert plan.context is None
