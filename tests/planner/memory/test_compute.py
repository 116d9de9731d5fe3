"""Compute buffers against everything that llama.cpp is known to have reserved: `benchmarks.compute_sources`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import oracle
from benchmarks.accuracy_sources import full_size_models, model_from_metadata
from benchmarks.compute_sources import (
    Reserved,
    Summary,
    architecture_compute,
    estimates,
    full_size_compute,
    live_compute,
    log_compute,
    machine,
    one_device_compute,
    recorded_compute,
    server_compute,
    summarise,
    two_device_compute,
)
from planner import Hardware, Launch, Model, predict
from planner.launch import resolve_context
from planner.memory.graph import graph_sizes
from planner.memory.kv import kv_caches
from planner.units import GIB, MIB

needs_llama = pytest.mark.skipif(not oracle.AVAILABLE, reason="llama-cpp-python is not installed")

LLAMA_3_8B = model_from_metadata(
    "llama3-8b",
    {
        "general.architecture": "llama",
        "llama.context_length": 131_072,
        "llama.embedding_length": 4096,
        "llama.block_count": 32,
        "llama.feed_forward_length": 14_336,
        "llama.attention.head_count": 32,
        "llama.attention.head_count_kv": 8,
        "llama.vocab_size": 128_256,
    },
)


def held(source: Iterable[Reserved], least: int) -> Summary:
    """The summary of a source whose ranges hold in 99 % of all cases."""
    found = estimates(source)
    assert len(found) >= least
    missed = [str(estimate) for estimate in found if not estimate.in_range]
    assert len(missed) <= 0.01 * len(found), missed
    return summarise(found)


def models(gemma: Model, smollm: Model) -> dict[str, Model]:
    return {model.path.stem: model for model in (gemma, smollm)}


def test_what_a_llama_server_reserved(gemma: Model, smollm: Model) -> None:
    found = held(server_compute(models(gemma, smollm)), 72)
    assert found.worst < 0.01 and found.in_range == 1


def test_what_logs_say_whose_launch_is_known(gemma: Model, smollm: Model) -> None:
    assert held(log_compute(models(gemma, smollm)), 10).in_range == 1


def test_full_size_models_on_one_device(shared: Path) -> None:
    found = held(one_device_compute(shared / "fullsize"), 150)
    assert found.median < 0.01 and found.percentile_95 < 0.05 and found.worst < 0.12


def test_full_size_models_with_the_logits_of_a_whole_ubatch(shared: Path) -> None:
    found = held(full_size_compute(shared / "fullsize"), 177)
    assert found.median < 0.01 and found.percentile_95 < 0.05 and found.worst < 0.17


def test_small_models_of_every_architecture(shared: Path) -> None:
    """Two layers of 256: gaps of a hidden state, which real models have as well, are several per cent here."""
    found = held(architecture_compute(shared / "archs"), 1004)
    assert found.median < 0.01 and found.near > 0.95 and found.worst < 0.3


def test_random_launches_of_full_size_models(shared: Path) -> None:
    found = held(recorded_compute(shared / "fullsize", devices=False), 150)
    assert found.median < 0.001 and found.percentile_95 < 0.05 and found.near > 0.95


def test_full_size_models_on_one_device_and_on_two(shared: Path) -> None:
    """What crosses between devices is not known of every architecture."""
    found = held(recorded_compute(shared / "fullsize", devices=True), 950)
    assert found.median < 0.001 and found.near > 0.95


GEMMA_4 = "gemma4-like (42L, shared kv 18)"


@pytest.mark.parametrize(
    ("model", "start", "device", "mib"),
    [
        # Layers 33 to 41 read the keys and values of 22 and 23 on the other device, each in a copy of its own, four
        # times over.
        (GEMMA_4, '{"ctx_size": 28471, ', "RPC1", 736.01),
        # One copy where devices do not work as a pipeline.
        (GEMMA_4, '{"ctx_size": 34798, ', "RPC1", 251.69),
        # Falcon-H1 attends and recurs in one layer; gpt-oss has experts as wide as its hidden state.
        ("falcon-h1-7b", '{"ctx_size": 17010, ', "RPC0", 109.76),
        ("gpt-oss-20b", '{"ctx_size": 31536, ', "RPC0", 127.40),
        # The rows that are to be told are picked behind Mamba's last weight, on the device of the output.
        ("mamba2-2.7b", '{"ctx_size": 22658, ', "RPC0", 20.04),
    ],
)
def test_what_lies_on_a_device_with_a_part_of_the_layers(
    shared: Path, model: str, start: str, device: str, mib: float
) -> None:
    (one,) = [
        estimate
        for estimate in estimates(recorded_compute(shared / "fullsize", devices=True))
        if estimate.name.startswith(f"{model} {start}") and estimate.name.endswith(device)
    ]
    assert one.expected / MIB == pytest.approx(mib, abs=0.01)
    assert one.predicted / MIB == pytest.approx(mib, rel=0.02)


@needs_llama
@pytest.mark.xdist_group("oracle")
def test_random_launches_of_every_header(shared: Path) -> None:
    found = held(live_compute(shared, 8), 700)
    assert found.median < 0.01 and found.near > 0.95


@needs_llama
@pytest.mark.xdist_group("oracle")
def test_two_devices_under_every_flag(shared: Path) -> None:
    held(two_device_compute(shared, ("gemma3-dense", "glm4moe-moe", "mamba2-dense")), 390)


def sizes_of(launch: Launch, *devices: str) -> dict[str, float]:
    """MiB per device for Llama-3-8B."""
    reserved = Reserved(
        name="llama3-8b",
        model=LLAMA_3_8B,
        launch=launch,
        hardware=machine(*devices),
        expected=dict.fromkeys((*devices, "CPU"), 1.0),
    )
    return {estimate.name.split()[-1]: estimate.predicted / MIB for estimate in reserved.estimates()}


ONE_SLOT = Launch(ctx_size=8192, parallel=1, flash_attn="on")


def test_one_device_and_its_host() -> None:
    assert sizes_of(ONE_SLOT, "RPC0") == pytest.approx({"RPC0": 124, "CPU": 40}, abs=0.03)


def test_the_processor_alone_needs_one_more_hidden_state() -> None:
    assert sizes_of(ONE_SLOT) == pytest.approx({"CPU": 132}, abs=0.03)


def test_scores_are_what_flash_attention_saves() -> None:
    off = Launch(ctx_size=8192, parallel=1, flash_attn="off")
    assert sizes_of(off, "RPC0") == pytest.approx({"RPC0": 572, "CPU": 52}, abs=0.03)


def test_a_device_that_gets_its_layers_from_the_host() -> None:
    launch = Launch(ctx_size=8192, parallel=1, n_gpu_layers=20)
    assert sizes_of(launch, "RPC0") == pytest.approx({"RPC0": 108, "CPU": 132}, abs=0.2)


def test_cards_borrow_the_weights_that_lie_on_the_host() -> None:
    """With `op_offload` the host looks up and passes on, and the card has room for the largest matrix."""
    launch = Launch(ctx_size=8192, parallel=1, flash_attn="on", n_gpu_layers=20)
    assert sizes_of(launch, "CUDA0") == pytest.approx({"CUDA0": 124, "CPU": 40}, abs=0.03)
    few = replace(launch, ubatch_size=31)
    assert sizes_of(few, "CUDA0")["CPU"] == sizes_of(few, "RPC0")["CPU"]


def test_a_pipeline_keeps_four_copies_of_its_inputs() -> None:
    split = Launch(ctx_size=8192, parallel=1, tensor_split=(1, 1))
    expected = {"RPC0": 244.1, "RPC1": 172.1, "CPU": 112.1}
    assert sizes_of(split, "RPC0", "RPC1") == pytest.approx(expected, abs=0.2)


def test_devices_are_a_pipeline_even_if_one_has_no_layer() -> None:
    split = Launch(ctx_size=8192, parallel=1, tensor_split=(1, 0))
    assert sizes_of(split, "RPC0", "RPC1")["CPU"] == pytest.approx(112.1, abs=0.2)


def test_cuda_converts_quantised_caches_and_metal_any() -> None:
    """One layer of 1,024 keys and as many values for 262,144 tokens: 512 MiB each as F16."""
    plain = Launch(ctx_size=262_144, parallel=1, flash_attn="on")
    quantised = plain.with_cache_type("q8_0")
    without = sizes_of(quantised, "RPC0")["RPC0"]
    assert sizes_of(quantised, "CUDA0")["CUDA0"] - without == pytest.approx(1024 - 84, abs=1)
    assert sizes_of(plain, "CUDA0")["CUDA0"] == sizes_of(plain, "RPC0")["RPC0"]
    assert sizes_of(plain, "MTL0")["MTL0"] - sizes_of(plain, "RPC0")["RPC0"] == pytest.approx(1024 - 84, abs=1)


def test_f32_caches_are_converted_everywhere() -> None:
    launch = Launch(ctx_size=262_144, parallel=1, flash_attn="on")
    more = sizes_of(launch.with_cache_type("f32"))["CPU"] - sizes_of(launch)["CPU"]
    assert more == pytest.approx(1024 - 84, abs=1)


def test_a_range_names_both_ends() -> None:
    plan = predict(LLAMA_3_8B, ONE_SLOT, Hardware.simulate(ram=64 * GIB))
    [compute] = [allocation for allocation in plan.allocations if allocation.component == "compute"]
    assert compute.low_bytes is not None and compute.high_bytes is not None
    assert 0.85 * compute.reserved_bytes < compute.low_bytes < compute.reserved_bytes
    assert compute.reserved_bytes < compute.high_bytes < 1.15 * compute.reserved_bytes


def test_more_rows_of_logits_make_larger_logits_and_nothing_else() -> None:
    shape, layout = LLAMA_3_8B.hyperparameters, LLAMA_3_8B.layout
    context = resolve_context(ONE_SLOT, shape.n_ctx_train)
    caches = kv_caches(layout, ONE_SLOT, context)
    graph = LLAMA_3_8B.graph
    few, many = (graph_sizes(shape, layout, ONE_SLOT, context, caches, graph=graph, outputs=rows) for rows in (1, 512))
    assert many.logits == 512 * few.logits
    assert (many.mask, many.attention, many.feed_forward) == (few.mask, few.attention, few.feed_forward)


def test_a_buffer_is_never_less_than_nothing(shared: Path) -> None:
    """Few layers of every full-size model on one card, two and three."""
    for name, model in full_size_models(shared / "fullsize").items():
        for cards, layers, users in itertools.product((1, 2, 3), (1, 2, 3, 5, 9), (1, 4)):
            hardware = Hardware.simulate(ram=512 * GIB, vram=[64 * GIB] * cards)
            for flash in ("on", "off"):
                launch = replace(Launch.for_users(users, 512), n_gpu_layers=layers, flash_attn=flash)
                for one in predict(model, launch, hardware).allocations:
                    low = one.reserved_bytes if one.low_bytes is None else one.low_bytes
                    high = one.reserved_bytes if one.high_bytes is None else one.high_bytes
                    assert 0 <= low <= one.reserved_bytes <= high, (name, launch, one)
