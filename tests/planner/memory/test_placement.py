"""Which weight, cache and state lies on which device: equal to llama.cpp's log, and to its rules where no
hardware is at hand to print one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import oracle
from benchmarks.ghosts import ghost, grow
from benchmarks.oracle import Oracle
from benchmarks.placement_sources import MODELS, differences, disagreements, launches
from planner import Hardware, Launch, Model, predict
from planner.engine.log import read_log
from planner.hardware import CPU_DEVICE, HOST_POOL, Device, Pool
from planner.memory.backends import BACKENDS
from planner.memory.placement import Placement, place, placement_refusal
from planner.memory.weights import LAZY_BYTES, plan_weights
from planner.model.ggml_types import type_named
from planner.model.gguf import GgufHeader, TensorInfo

pytestmark = pytest.mark.xdist_group("oracle")
AVX2 = frozenset({"avx", "avx2", "f16c", "fma", "bmi2"})


def machine(*devices: str, usable_bytes: tuple[int, ...] = (), features: frozenset[str] = AVX2) -> Hardware:
    """A machine with these devices besides its CPU, each with memory of its own."""
    sizes = usable_bytes or (16 << 30,) * len(devices)
    pools = zip((*devices, HOST_POOL), (*sizes, 64 << 30), strict=True)
    return Hardware(
        pools=tuple(Pool(name=name, total_bytes=size, usable_bytes=size, source="test") for name, size in pools),
        devices=(*(Device(name=name, pool=name) for name in devices), Device(name=CPU_DEVICE, pool=HOST_POOL)),
        cpu_features=features,
    )


@pytest.fixture(scope="module")
def devices() -> Iterator[Oracle]:
    """llama.cpp with two devices."""
    if not oracle.AVAILABLE:
        pytest.skip("llama-cpp-python is not installed")
    with Oracle(devices=2) as opened:
        yield opened


@pytest.mark.parametrize("name", MODELS)
def test_equals_the_log_of_llama_cpp(name: str, shared: Path, devices: Oracle, tmp_path: Path) -> None:
    path = grow(ghost(shared, name, tmp_path), tmp_path / "grown.gguf", **MODELS[name])  # type: ignore[arg-type]
    assert disagreements(devices, path, launches(*devices.device_names)) == {}


def test_split_files_equal_the_log(shared: Path, devices: Oracle, tmp_path: Path) -> None:
    source = ghost(shared, "qwen3moe-moe", tmp_path)
    path = grow(source, tmp_path / "split.gguf", layers=8, matrices={"": "Q4_0"}, tied=True, shards=3)
    assert disagreements(devices, path, launches(*devices.device_names)) == {}


@pytest.mark.parametrize(
    "kind",
    "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 IQ2_XXS TQ1_0 BF16 F16".split(),
)
def test_rearranged_weights_equal_the_log(kind: str, shared: Path, devices: Oracle, tmp_path: Path) -> None:
    source = ghost(shared, "qwen3moe-moe", tmp_path)
    path = grow(source, tmp_path / "grown.gguf", layers=2, matrices={"": kind}, tied=True)
    base = Launch(ctx_size=256, parallel=1, flash_attn="on")
    table = {
        "CPU": replace(base, device="none"),
        "copied": replace(base, device="none", load_mode="none"),
        "experts": replace(base, cpu_moe=True),
    }
    assert disagreements(devices, path, table) == {}


def test_a_real_model_equals_the_log(smollm_path: Path, devices: Oracle) -> None:
    base = Launch(ctx_size=4096, parallel=2, flash_attn="on")
    table = {
        "default": base,
        "-ngl 17 -ts 1,3": replace(base, n_gpu_layers=17, tensor_split=(1, 3)),
        "--n-cpu-ffn 12": replace(base, n_cpu_ffn=12),
    }
    assert disagreements(devices, smollm_path, table) == {}


def test_any_number_beyond_the_layers_means_all_of_them(smollm_path: Path) -> None:
    model, hardware = Model.open(smollm_path), machine("CUDA0")
    plans = [
        predict(model, Launch(ctx_size=4096, n_cpu_ffn=layers, n_cpu_moe=layers), hardware)
        for layers in (30, 2**31 - 1)
    ]
    assert plans[0].allocations == plans[1].allocations


def test_a_real_tied_model_equals_the_log(gemma_path: Path, devices: Oracle) -> None:
    base = Launch(ctx_size=4096, parallel=2, flash_attn="on")
    table = {"-ngl 10": replace(base, n_gpu_layers=10), "-dev none": replace(base, device="none")}
    assert disagreements(devices, gemma_path, table) == {}


def test_a_device_too_many_is_refused_as_by_llama_cpp(shared: Path, devices: Oracle, tmp_path: Path) -> None:
    launch = Launch(ctx_size=256, parallel=1, flash_attn="on", split_mode="none", main_gpu=2)
    [answer] = devices.loads(ghost(shared, "llama-dense", tmp_path), [launch])
    assert "invalid value for main_gpu: 2" in answer.refusal
    assert "--main-gpu 2" in placement_refusal(launch, devices.hardware(AVX2))


# Logs of a llama-server --------------------------------------------------------------------------------

TWO_DEVICES = """\
load_tensors:   CPU_Mapped model buffer size =   170.00 MiB
load_tensors: RPC0[127.0.0.1:50052] model buffer size =    53.73 MiB
load_tensors: RPC0[127.0.0.1:50053] model buffer size =   181.43 MiB
llama_kv_cache: RPC0[127.0.0.1:50052] KV buffer size =    16.00 MiB
llama_kv_cache: RPC0[127.0.0.1:50053] KV buffer size =     8.00 MiB
llama_kv_cache: RPC0[127.0.0.1:50052] KV buffer size =    26.00 MiB
llama_kv_cache: RPC0[127.0.0.1:50053] KV buffer size =     4.00 MiB
"""
"""Gemma 3 270M, q4_K_M, `-c 8192 -np 2 -ts 3,1`, build b11434."""

PARTIAL_OFFLOAD = """\
load_tensors:   CPU_Mapped model buffer size =    92.10 MiB
load_tensors: RPC0[127.0.0.1:50052] model buffer size =    47.71 MiB
llama_kv_cache:        CPU KV buffer size =    63.00 MiB
llama_kv_cache: RPC0[127.0.0.1:50052] KV buffer size =    27.00 MiB
"""
"""SmolLM2 135M, q4_1, `-c 4096 -np 1 -ngl 10`, build b11434."""


def test_two_devices_as_a_server_logged_them(gemma: Model) -> None:
    hardware = machine("RPC0[127.0.0.1:50052]", "RPC0[127.0.0.1:50053]")
    plan = predict(gemma, Launch(ctx_size=8192, parallel=2, tensor_split=(3, 1)), hardware)
    assert differences(plan, read_log(TWO_DEVICES.splitlines())) == []


def test_partial_offload_as_a_server_logged_it(smollm: Model) -> None:
    hardware = machine("RPC0[127.0.0.1:50052]")
    plan = predict(smollm, Launch(ctx_size=4096, parallel=1, n_gpu_layers=10), hardware)
    assert differences(plan, read_log(PARTIAL_OFFLOAD.splitlines())) == []


# Layers ------------------------------------------------------------------------------------------------


def layers(count: int, launch: Launch, hardware: Hardware) -> dict[str, int]:
    """How many layers each device has, the output layer included."""
    devices = place(count, launch, hardware).layers
    return {device: devices.count(device) for device in dict.fromkeys(devices)}


@pytest.mark.parametrize(
    ("n_gpu_layers", "expected"),
    [
        (0, {"CPU": 33}),
        (1, {"CPU": 32, "CUDA0": 1}),
        (20, {"CPU": 13, "CUDA0": 20}),
        (33, {"CUDA0": 33}),
        (999, {"CUDA0": 33}),
        (None, {"CUDA0": 33}),
    ],
)
def test_the_output_layer_is_offloaded_first(n_gpu_layers: int | None, expected: dict[str, int]) -> None:
    launch = Launch(n_gpu_layers=n_gpu_layers)
    assert layers(32, launch, machine("CUDA0")) == expected
    assert place(32, launch, machine("CUDA0")).output == list(expected)[-1]


def test_a_given_split_is_three_to_one() -> None:
    hardware = machine("CUDA0", "CUDA1")
    assert layers(32, Launch(tensor_split=(3, 1)), hardware) == {"CUDA0": 25, "CUDA1": 8}


def test_a_split_without_shares_is_by_free_memory() -> None:
    hardware = machine("CUDA0", "CUDA1", usable_bytes=(24 << 30, 8 << 30))
    by_memory = {"CUDA0": 25, "CUDA1": 8}
    assert layers(32, Launch(), hardware) == by_memory
    assert layers(32, Launch(tensor_split=(0, 0)), hardware) == by_memory


def test_without_any_known_memory_the_split_is_even() -> None:
    hardware = machine("CUDA0", "CUDA1", usable_bytes=(0, 0))
    assert layers(31, Launch(), hardware) == {"CUDA0": 16, "CUDA1": 16}


def test_a_split_is_compared_in_single_precision() -> None:
    # In double precision layer 3 of 10 lies before 0.1 + 0.2, in single precision on it, and so behind it.
    hardware = machine("CUDA0", "CUDA1", "CUDA2")
    assert layers(9, Launch(tensor_split=(0.1, 0.2, 0.7)), hardware) == {"CUDA0": 1, "CUDA1": 2, "CUDA2": 7}


def test_one_device_of_several() -> None:
    hardware = machine("CUDA0", "CUDA1")
    assert layers(32, Launch(split_mode="none", main_gpu=1), hardware) == {"CUDA1": 33}
    assert layers(32, Launch(device="CUDA1"), hardware) == {"CUDA1": 33}
    assert layers(32, Launch(device="none"), hardware) == {"CPU": 33}


def test_what_belongs_to_no_block() -> None:
    two = Placement(("CPU", "CUDA0", "CUDA1", "CUDA1"), ("CPU",) * 3, ())
    assert two.devices_of("token_embd.weight") == ("CPU",)
    assert two.devices_of("output_norm.weight") == ("CUDA1",)
    assert two.devices_of("rope_freqs.weight") == ("CPU", "CUDA0", "CUDA1")
    assert two.devices_of("token_embd_norm.weight", "bloom") == ("CPU",)
    assert two.devices_of("token_embd_norm.weight", "lfm2") == ("CUDA1",)


@pytest.mark.parametrize(
    ("launch", "word"),
    [
        (Launch(device="CUDA7"), "'CUDA7'"),
        (Launch(split_mode="none", main_gpu=1), "--main-gpu 1"),
        (Launch(override_tensor=(("ffn", "GPU"),)), "'GPU'"),
        (Launch(override_tensor=(("ffn(", "CPU"),)), "'ffn('"),
    ],
)
def test_what_llama_cpp_would_not_place(launch: Launch, word: str) -> None:
    assert word in placement_refusal(launch, machine("CUDA0"))


@pytest.mark.parametrize(
    "launch", [Launch(), Launch(device="none", main_gpu=3), Launch(override_tensor=(("ffn", "CUDA0"),))]
)
def test_what_it_would_place(launch: Launch) -> None:
    assert placement_refusal(launch, machine("CUDA0")) == ""


# Back ends that are not at hand: the rules of llama.cpp's source ---------------------------------------


def weights(model: Model, launch: Launch, hardware: Hardware) -> dict[str, int]:
    """Bytes of weights by buffer."""
    return {
        allocation.buffer: allocation.reserved_bytes
        for allocation in predict(model, launch, hardware).allocations
        if allocation.component == "weights"
    }


@pytest.mark.parametrize("kind", ["cuda", "rocm", "sycl"])
def test_cuda_enlarges_quantised_rows_to_512_elements(kind: str) -> None:
    backend = BACKENDS[kind]  # type: ignore[index]
    q8_0, f32 = type_named("q8_0"), type_named("f32")
    # 576 elements: 64 of the second 512, so 448 more in blocks of 32 with 34 bytes each.
    assert backend.tensor_bytes(576, 10 * 612, q8_0) == -(-(10 * 612 + 448 // 32 * 34) // 128) * 128
    assert backend.tensor_bytes(1024, 10 * 1088, q8_0) == 10 * 1088
    assert backend.tensor_bytes(576, 10 * 2304, f32) == 10 * 2304
    assert backend.tensor_bytes(1, 4, f32) == 128


def test_cuda_enlarges_quantised_caches(smollm: Model) -> None:
    # Rows of 192 elements: 320 more in each of 60 tensors, 340 bytes as q8_0, rounded up to 128.
    launch = Launch(ctx_size=4096, parallel=1, cache_type_k="q8_0", cache_type_v="q8_0")
    [cache] = [a for a in predict(smollm, launch, machine("CUDA0")).allocations if a.component == "kv"]
    assert cache.reserved_bytes == 60 * -(-(4096 * 192 // 32 * 34 + 340) // 128) * 128
    assert cache.certainty == "estimated"
    assert "not verified on hardware" in cache.reason


def test_cuda_keeps_the_table_on_the_host_and_a_copy_on_the_device(gemma: Model) -> None:
    table = gemma.tensor("token_embd.weight")
    assert table is not None
    found = weights(gemma, Launch(ctx_size=4096, parallel=1), machine("CUDA0"))
    assert found["CPU_Mapped"] == table.nbytes == 178_257_920
    assert found["CUDA0"] >= gemma.tensor_bytes


def test_pinned_memory_comes_before_rearranging(gemma: Model) -> None:
    hardware = machine("CUDA0")
    on_host = Launch(ctx_size=4096, parallel=1, n_gpu_layers=0)
    assert set(weights(gemma, on_host, hardware)) == {"CPU_Mapped"}
    assert set(weights(gemma, replace(on_host, load_mode="none"), hardware)) == {"CUDA_Host"}
    assert set(weights(gemma, replace(on_host, no_host=True), hardware)) == {"CPU_Mapped", "CPU_REPACK"}
    assert set(weights(gemma, on_host, machine())) == {"CPU_Mapped", "CPU_REPACK"}


def test_metal_uses_the_mapped_file(gemma: Model) -> None:
    hardware = machine("MTL0")
    launch = Launch(ctx_size=4096, parallel=1)
    mapped = weights(gemma, launch, hardware)
    [span] = gemma.spans(gemma.tensors)
    assert mapped["MTL0_Mapped"] == span[1] - span[0]
    assert mapped["CPU_Mapped"] == 178_257_920
    copied = weights(gemma, replace(launch, load_mode="none"), hardware)
    assert copied["MTL0"] == sum(-(-tensor.nbytes // 32) * 32 for tensor in gemma.tensors)


def test_metal_has_no_pinned_memory(gemma: Model) -> None:
    assert "CPU_REPACK" in weights(gemma, Launch(ctx_size=4096, parallel=1, n_gpu_layers=0), machine("MTL0"))


def test_vulkan_aligns_to_256_bytes(gemma: Model) -> None:
    found = weights(gemma, Launch(ctx_size=4096, parallel=1, load_mode="none"), machine("Vulkan0"))
    assert found["Vulkan0"] == sum(-(-tensor.nbytes // 256) * 256 for tensor in gemma.tensors)
    assert "Vulkan_Host" in found


@pytest.mark.parametrize("device", ["CUDA0", "ROCm0", "MTL0", "Vulkan0", "SYCL0"])
def test_what_was_only_read_is_said_to_be(device: str, gemma: Model) -> None:
    plan = predict(gemma, Launch(ctx_size=4096, parallel=1), machine(device))
    [copy] = [a for a in plan.allocations if a.component == "weights" and a.device == device]
    assert copy.certainty == "estimated"
    assert "not verified on hardware" in copy.reason
    assert copy.low_bytes is not None and copy.high_bytes is not None
    assert copy.low_bytes <= copy.reserved_bytes <= copy.high_bytes


# Tables that are read on demand ------------------------------------------------------------------------


def table_model(architecture: str, rows: int) -> Model:
    """A model of one large table and one small one."""
    f32 = type_named("f32")
    header = GgufHeader(
        version=3,
        metadata={"general.architecture": architecture},
        tensors=(
            TensorInfo("per_layer_token_embd.weight", (1024, rows), f32, 0),
            TensorInfo("token_embd.weight", (1024, 8), f32, rows * 4096),
        ),
        alignment=32,
        data_offset=0,
    )
    return Model(path=Path("table.gguf"), header=header)


@pytest.mark.parametrize("load_mode", ["auto", "none"])
def test_a_large_table_is_mapped_and_read_on_demand(load_mode: str) -> None:
    rows = LAZY_BYTES // 4096 + 1
    launch = Launch(load_mode=load_mode)  # type: ignore[arg-type]
    found = plan_weights(table_model("gemma4", rows), launch, machine(), place(1, launch, machine()))
    [lazy] = [allocation for allocation in found if "on demand" in allocation.buffer]
    assert (lazy.reserved_bytes, lazy.resident_bytes) == (rows * 4096, 0)
    assert sum(allocation.resident_bytes for allocation in found) == 8 * 4096


@pytest.mark.parametrize(("architecture", "rows"), [("gemma4", LAZY_BYTES // 4096), ("gemma3n", 2 << 20)])
def test_other_tables_are_not(architecture: str, rows: int) -> None:
    found = plan_weights(table_model(architecture, rows), Launch(), machine(), place(1, Launch(), machine()))
    assert [allocation.buffer for allocation in found] == ["CPU_Mapped"]
