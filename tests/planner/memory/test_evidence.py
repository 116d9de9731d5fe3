"""Public reports of planners failing, each as a test named after what it teaches, with the public figure.

Nothing but the hyperparameters in `benchmarks/evidence.py` is needed. Reports about measured growth, drivers,
logs, images and catalogues have their tests where those are; per-layer-embedding tables (26.82 GiB of
Qwen3.8-Flash-Next) and Gemma 4's shapes read from tensors need real headers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.accuracy_sources import figures_of, model_from_metadata
from benchmarks.evidence import CARD, MODELS, model_of
from planner.hardware import Hardware
from planner.launch import Launch, resolve_context
from planner.memory import Verdict, predict
from planner.memory.draft import plan_draft
from planner.memory.kv import kv_caches
from planner.memory.placement import place
from planner.model import Model
from planner.model.ggml_types import type_named
from planner.model.gguf import TensorInfo
from planner.units import GIB, KIB, MIB

CPU = Hardware.simulate(ram=CARD)
ONE_CARD = Hardware.simulate(ram=CARD, vram=(CARD,))
PRINTED = 0.0051


def mib(model: str, figure: str, *, both: str = "f16", **settings: Any) -> float:
    """One of our figures, in MiB."""
    launch = Launch(**{"cache_type_k": both, "cache_type_v": both, **settings})
    return figures_of(MODELS[model], launch)[figure] / MIB


def cells(model: str, **settings: Any) -> dict[str, int]:
    launch = Launch(**settings)
    context = resolve_context(launch, MODELS[model].hyperparameters.n_ctx_train)
    return {cache.name: cache.cells for cache in kv_caches(MODELS[model].layout, launch, context)}


def tensor(name: str, shape: tuple[int, ...], ggml_type: str, offset: int = 0) -> TensorInfo:
    return TensorInfo(name=name, shape=shape, type=type_named(ggml_type), offset=offset)


def with_tensors(model: Model, *tensors: TensorInfo) -> Model:
    return replace(model, header=replace(model.header, tensors=tensors))


# 1. Caches and architectures


def test_grouped_queries_are_cached_once_per_group() -> None:
    assert mib("qwen3-4b", "kv", ctx_size=8192) == 1152


@pytest.mark.parametrize(("model", "per_block"), [("qwen3.8-27b-mtp", 4.00), ("qwen3.6-35b-a3b", 1.25)])
def test_only_every_fourth_layer_of_a_hybrid_has_a_cache(model: str, per_block: float) -> None:
    assert mib(model, "kv", ctx_size=64 * 256) / 256 == per_block


def test_a_hybrid_at_its_full_context_takes_16_gib_and_not_75() -> None:
    assert mib("qwen3.5-27b", "kv", ctx_size=262_144) == 16_384
    assert mib("qwen3.5-27b", "state", ctx_size=262_144) == 598.5


def test_a_quantised_hybrid_fits_eight_times_the_context_of_a_careful_ladder() -> None:
    settings = {"ctx_size": 262_144, "parallel": 2, "kv_unified": True, "both": "q8_0"}
    assert mib("qwen3.5-9b", "kv", **settings) == 4352
    assert mib("qwen3.5-9b", "state", **settings) == 100.5


def test_a_context_between_multiples_of_256_is_rounded_up() -> None:
    assert cells("qwen3.5-9b", ctx_size=110_000, parallel=1) == {"KV": 110_080}
    assert mib("qwen3.5-9b", "kv", ctx_size=110_000, parallel=1) == 3440


@pytest.mark.parametrize(
    ("model", "per_slot"), [("qwen3.5-9b", 50.25), ("qwen3.5-27b", 149.625), ("qwen3-coder-next", 75.375)]
)
@pytest.mark.parametrize("both", ["f16", "q8_0", "q4_0"])
def test_state_is_per_slot_and_f32_whatever_the_context_and_the_cache_type(
    model: str, per_slot: float, both: str
) -> None:
    assert mib(model, "state", ctx_size=4096, parallel=1, both=both) == per_slot
    assert mib(model, "state", ctx_size=131_072, parallel=3, both=both) == 3 * per_slot


def test_guessing_ahead_keeps_the_state_once_more_per_token() -> None:
    settings = {"ctx_size": 8192, "spec_type": "draft-mtp", "spec_draft_n_max": 2}
    assert mib("qwen3.8-27b-mtp", "state", **settings) == 1795.5
    assert mib("qwen3.8-27b-mtp", "kv", **settings) == 512


def test_a_unified_cache_grows_with_slots_where_layers_have_a_window() -> None:
    four = {"ctx_size": 8192, "both": "q8_0"}
    assert mib("gemma-4-12b", "full", **four) == 68
    assert mib("gemma-4-12b", "swa", **four) == 765
    assert cells("gemma-4-12b", ctx_size=8192)["SWA KV"] == 4608
    assert mib("gemma-4-12b", "kv", ctx_size=8192, parallel=1, both="q8_0") == 323
    assert mib("gemma-4-12b", "kv", ctx_size=4096, parallel=1, both="q8_0") == 289


@pytest.mark.parametrize(("ubatch", "window_cells", "size"), [(512, 768, 18), (2048, 2304, 54)])
def test_a_windowed_cache_holds_the_window_and_one_ubatch(ubatch: int, window_cells: int, size: float) -> None:
    settings = {"ctx_size": 131_072, "parallel": 1, "ubatch_size": ubatch}
    assert cells("gpt-oss-20b", **settings)["SWA KV"] == window_cells
    assert mib("gpt-oss-20b", "swa", **settings) == size
    assert mib("gpt-oss-20b", "full", **settings) == 3072


def test_half_the_layers_with_a_window_take_next_to_nothing() -> None:
    assert mib("gpt-oss-120b", "full", ctx_size=65_535) == 2304
    assert mib("gpt-oss-120b", "swa", ctx_size=65_535) == 36
    assert mib("gpt-oss-120b", "kv", ctx_size=65_535, swa_full=True) == 4608


def test_windowed_layers_have_their_own_size_of_heads() -> None:
    shape = MODELS["gemma-4-31b"].hyperparameters
    assert shape.swa_layers.count(False) == 10
    assert {shape.n_embd_k_gqa(layer) for layer in range(60) if shape.swa_layers[layer]} == {16 * 256}
    assert {shape.n_embd_k_gqa(layer) for layer in range(60) if not shape.swa_layers[layer]} == {4 * 512}


def test_layers_that_share_a_cache_have_none() -> None:
    full, windowed = MODELS["gemma-4-e2b"].layout.caches
    assert (len(full.layers), len(windowed.layers)) == (3, 12)
    assert mib("gemma-4-e2b", "full", ctx_size=4096, parallel=1, swa_full=True) == 24
    assert mib("gemma-4-e2b", "swa", ctx_size=4096, parallel=1, swa_full=True) == 48


def test_an_array_of_heads_is_read_whole_and_not_by_its_first_entry() -> None:
    assert mib("lfm2.5-1.5b", "kv", ctx_size=32_768) == 384
    assert mib("lfm2.5-1.5b", "kv", ctx_size=4096) == 48


def test_parameters_say_nothing_about_a_cache() -> None:
    def rule_of_thumb(billions: float) -> float:
        return min(max(billions * 0.12, 0.35), 3.5) * 1024

    assert mib("qwen3-0.6b", "kv", ctx_size=32_768) == 3584 > 9 * rule_of_thumb(0.6)
    assert mib("qwen3.5-27b", "kv", ctx_size=32_768) == 2048 < 0.7 * rule_of_thumb(27)


def test_an_array_of_heads_that_contradicts_the_tensors_is_refused() -> None:
    model = with_tensors(
        model_of(
            "nemotron-3.5-lightning",
            "nemotron_h_moe",
            block_count=52,
            embedding_length=2688,
            context_length=1 << 20,
            attention__head_count=32,
            attention__head_count_kv=(0,) * 52,
            ssm__conv_kernel=4,
            ssm__inner_size=4096,
            ssm__state_size=128,
        ),
        tensor("blk.5.attn_k.weight", (2688, 256), "q4_0"),
    )
    plan = predict(model, Launch(), CPU)
    assert plan.verdict is Verdict.REFUSED
    assert "head_count_kv is 0 where blk.5.attn_k.weight lies" in plan.refusal


def test_latent_attention_caches_keys_alone() -> None:
    assert mib("deepseek-v3", "kv", ctx_size=32_768) == 2196
    assert mib("deepseek-v3", "kv", ctx_size=32_768, both="q8_0") == pytest.approx(1166.62, abs=PRINTED)
    assert mib("deepseek-v3", "values", ctx_size=32_768) == 0


def test_an_old_conversion_without_latent_sizes_caches_everything() -> None:
    assert mib("deepseek-r1-expanded", "kv", ctx_size=2048) == 9760
    assert mib("deepseek-v2-expanded", "kv", ctx_size=4096) == 19_200


def test_the_size_of_heads_is_read_and_not_divided() -> None:
    assert mib("qwen3-0.6b", "kv", ctx_size=256) * MIB / 256 == 112 * KIB


def test_the_cache_that_guesses_ahead_is_f16_whatever_the_cache_type() -> None:
    for both in ("f16", "q8_0"):
        settings = {"spec_type": "draft-mtp", "both": both}
        assert mib("qwen3.8-27b-mtp", "ahead", ctx_size=8192, **settings) == 32
        assert mib("qwen3.8-27b-mtp", "ahead", ctx_size=200_704, **settings) == 784


def test_a_context_that_guesses_ahead_has_buffers_of_its_own() -> None:
    # The feed-forward is as wide as Qwen3.8-27B's is known to be; the log does not print it.
    keys = {**MODELS["qwen3.8-27b-mtp"].metadata, "qwen35.feed_forward_length": 17_408}
    model = model_from_metadata("qwen3.8-27b-mtp", keys)
    launch = Launch(ctx_size=8192, ubatch_size=2048, spec_type="draft-mtp", spec_draft_n_max=2)
    shape, context = model.hyperparameters, resolve_context(launch, 262_144)
    parts = plan_draft(shape, model.layout, model.graph, launch, context, place(shape.n_layer_all, launch, ONE_CARD))
    assert {part.component for part in parts} == {"draft"}
    sizes = {part.buffer: part for part in parts}
    assert sizes["MTP KV"].reserved_bytes == 32 * MIB
    assert sizes["MTP CPU output"].reserved_bytes / MIB == pytest.approx(3.79, abs=PRINTED)
    for buffer, logged in (("MTP CUDA0 compute", 520.06), ("MTP CPU compute", 112.07)):
        compute = sizes[buffer]
        assert compute.low_bytes is not None and compute.high_bytes is not None
        assert compute.low_bytes <= logged * MIB <= compute.high_bytes
        assert compute.reserved_bytes / MIB == pytest.approx(logged, abs=0.1)


def test_divided_slots_are_rounded_up_each() -> None:
    assert cells("tinyllama-1.1b", ctx_size=32_768, parallel=99) == {"KV": 512}
    assert mib("tinyllama-1.1b", "kv", ctx_size=32_768, parallel=99) == 1089


def test_whole_windows_cost_a_model_with_few_full_layers_four_times_its_cache() -> None:
    assert mib("laguna", "kv", ctx_size=262_144, both="q4_0", swa_full=True) == 13_824
    assert mib("laguna", "full", ctx_size=262_144, both="q4_0") == 3456
    assert mib("gemma-3-27b", "kv", ctx_size=131_072, parallel=1, swa_full=True) == 63_488


def test_a_million_tokens_of_a_windowed_model_are_known_to_the_mebibyte() -> None:
    assert mib("laguna", "full", ctx_size=1 << 20, parallel=1, both="q4_0") == 13_824
    assert mib("laguna", "swa", ctx_size=1 << 20, parallel=1, both="q4_0") == 40.5


def test_without_a_context_the_trained_one_is_reserved() -> None:
    assert mib("deepseek-v2-lite", "kv") * MIB == 45_298_483_200
    assert mib("qwen3-1.7b", "kv") == 4480


def test_a_rope_factor_does_not_multiply_the_context() -> None:
    model = MODELS["deepseek-v3"]
    scaled = replace(
        model,
        header=replace(model.header, metadata={**model.metadata, "deepseek2.rope.scaling.factor": 40.0}),
    )
    assert resolve_context(Launch(), scaled.hyperparameters.n_ctx_train).n_ctx == 163_840


@pytest.mark.parametrize(("both", "share"), [("q8_0", 34 / 64), ("q4_0", 18 / 64)])
def test_a_quantised_cache_takes_its_share(both: str, share: float) -> None:
    whole = mib("qwen2.5-7b", "kv", ctx_size=262_144)
    assert mib("qwen2.5-7b", "kv", ctx_size=262_144, both=both) == whole * share


def test_an_encoder_keeps_no_context_and_computes_by_its_ubatch() -> None:
    encoder = model_of(
        "reranker",
        "bert",
        block_count=24,
        embedding_length=1024,
        feed_forward_length=4096,
        context_length=8192,
        vocab_size=250_002,
        attention__head_count=16,
    )
    small, large = (
        predict(encoder, Launch(ctx_size=8192, embeddings=True, ubatch_size=ubatch), CPU) for ubatch in (512, 8192)
    )
    assert small.bytes(component="kv") == large.bytes(component="kv") == 0
    assert large.bytes(component="compute") > 4 * small.bytes(component="compute")


def test_deepseek_v4_caches_keys_in_a_window_and_nothing_without_one() -> None:
    layout = MODELS["deepseek-v4"].layout
    launch = Launch(ctx_size=1 << 20, parallel=1, ubatch_size=4096, batch_size=4096)
    windowed = kv_caches(layout, launch, resolve_context(launch, 1 << 20))[0]
    assert (windowed.name, windowed.cells, len(windowed.layout.layers)) == ("SWA KV", 4352, 43)
    assert windowed.total_bytes / MIB == 182.75


# 2. Output, weights and compute


@pytest.mark.parametrize(
    ("model", "slots", "size"),
    [
        ("qwen3.5-27b", 4, 3.79),
        ("qwen3.5-27b", 1, 0.95),
        ("gpt-oss-20b", 1, 0.77),
        ("gemma-4-12b", 1, 1.00),
        ("gemma-4-12b", 4, 4.00),
    ],
)
def test_the_output_buffer_is_one_row_of_logits_per_slot_on_the_host(model: str, slots: int, size: float) -> None:
    plan = predict(MODELS[model], Launch(ctx_size=8192, parallel=slots), ONE_CARD)
    assert plan.bytes(component="output", device="CPU") / MIB == pytest.approx(size, abs=PRINTED)


def test_the_first_layer_on_a_card_is_the_output_layer() -> None:
    placement = place(28, Launch(n_gpu_layers=1), ONE_CARD)
    assert (placement.layers, placement.output) == (("CPU",) * 28 + ("CUDA0",), "CUDA0")
    assert set(placement.cache_layers) == {"CPU"}


def test_the_cache_of_a_hybrid_is_split_by_its_attention_layers() -> None:
    plan = predict(MODELS["qwen3.5-27b"], Launch(ctx_size=131_072, parallel=1, n_gpu_layers=26), ONE_CARD)
    assert plan.bytes(component="kv", device="CUDA0") / MIB == 3584
    assert plan.bytes(component="kv", device="CPU") / MIB == 4608
    assert plan.bytes(component="state", device="CUDA0") / MIB == pytest.approx(56.11, abs=PRINTED)
    assert plan.bytes(component="state", device="CPU") / MIB == pytest.approx(93.52, abs=PRINTED)


@pytest.mark.parametrize(("ggml_type", "size"), [("q4_K", 682.03), ("q3_K", 521.00), ("q2_K", 397.85)])
def test_the_token_table_stays_on_the_host(ggml_type: str, size: float) -> None:
    table = tensor("token_embd.weight", (5120, 248_320), ggml_type)
    output = tensor("output.weight", (5120, 248_320), "q6_K", offset=table.nbytes)
    model = with_tensors(MODELS["qwen3.5-27b"], table, output)
    plan = predict(model, Launch(ctx_size=256, parallel=1), ONE_CARD)
    assert plan.bytes(component="weights", device="CPU") / MIB == pytest.approx(size, abs=PRINTED)


def test_a_token_table_that_is_the_output_matrix_too_lies_on_both_sides() -> None:
    table = tensor("token_embd.weight", (5120, 248_320), "q4_K")
    plan = predict(with_tensors(MODELS["qwen3.5-27b"], table), Launch(ctx_size=256, parallel=1), ONE_CARD)
    assert plan.bytes(component="weights", device="CPU") == table.nbytes
    assert plan.bytes(component="weights", device="CUDA0") == table.nbytes


def test_compute_grows_with_the_ubatch() -> None:
    small, large = (
        predict(MODELS["gpt-oss-20b"], Launch(ctx_size=131_072, parallel=1, ubatch_size=ubatch), CPU)
        for ubatch in (512, 2048)
    )
    ratio = large.bytes(component="compute") / small.bytes(component="compute")
    assert ratio == pytest.approx(1672.08 / 420.08, rel=0.05)


def test_compute_grows_with_the_context_where_flash_attention_is_off() -> None:
    with_flash, without = (
        predict(MODELS["qwen3-32b"], Launch(ctx_size=40_960, parallel=1, flash_attn=flash), CPU)
        for flash in ("auto", "off")
    )
    assert with_flash.bytes(component="compute") < GIB
    assert without.bytes(component="compute") / MIB == pytest.approx(5252.01, rel=0.05)
