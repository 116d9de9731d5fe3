"""Reading llama-server's log, by logs of real runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.engine.log import ROUNDING_BYTES, EngineLog, read_log
from planner.units import MIB

LOGS = Path(__file__).parents[2] / "data" / "logs"
RPC0, RPC1 = "RPC0[127.0.0.1:50052]", "RPC0[127.0.0.1:50053]"


def read(name: str) -> EngineLog:
    return read_log((LOGS / name).read_text(encoding="utf-8").splitlines(keepends=True))


def in_mib(log: EngineLog) -> list[tuple[str, str, float]]:
    return [(buffer.kind, buffer.device, round(buffer.size_bytes / MIB, 2)) for buffer in log.buffers]


def test_two_caches_of_a_model_with_sliding_windows() -> None:
    log = read("b11434-lv4-f16-np2.log")
    assert in_mib(log) == [
        ("model", "CPU_Mapped", 235.16),
        ("model", "CPU_REPACK", 12.66),
        ("output", "CPU", 2.00),
        ("kv", "CPU", 24.00),
        ("kv", "CPU", 30.00),
        ("compute", "CPU", 23.28),
    ]
    assert log.cells == (4096, 1024)
    assert log.context == {"n_seq_max": 2, "n_ctx": 8192, "n_ctx_seq": 4096, "n_batch": 2048, "n_ubatch": 512}
    assert log.buffer_bytes("kv") == 54 * MIB
    assert log.buffer_bytes("model", "CPU_REPACK") == round(12.66 * MIB)


def test_a_server_that_chose_its_slots_itself() -> None:
    log = read("b11434-lv4-q8-auto-np.log")
    assert log.cells == (8192, 2560)
    assert log.context["n_seq_max"] == 4
    assert log.context["n_ctx_seq"] == 8192
    assert log.buffer_bytes("kv") == round(12.75 * MIB) + round(19.92 * MIB)
    assert log.buffer_bytes("compute") == round(29.31 * MIB)
    assert log.buffer_bytes("output") == 4 * MIB


def test_a_log_of_json_lines() -> None:
    log = read("b11434-jsonl-lv4-q4.log")
    assert in_mib(log) == [
        ("model", "CPU_Mapped", 235.16),
        ("model", "CPU_REPACK", 12.66),
        ("output", "CPU", 1.00),
        ("kv", "CPU", 6.75),
        ("kv", "CPU", 4.22),
        ("compute", "CPU", 27.81),
    ]
    assert log.cells == (8192, 1024)
    assert log.context["n_seq_max"] == 1


def test_two_devices_beside_the_processor() -> None:
    log = read("b11434-lv4-two-devices.log")
    assert in_mib(log) == [
        ("model", "CPU_Mapped", 170.00),
        ("model", RPC0, 53.73),
        ("model", RPC1, 181.43),
        ("output", "CPU", 2.00),
        ("kv", RPC0, 16.00),
        ("kv", RPC1, 8.00),
        ("kv", RPC0, 26.00),
        ("kv", RPC1, 4.00),
        ("compute", RPC0, 52.84),
        ("compute", RPC1, 41.57),
        ("compute", "CPU", 32.61),
    ]
    assert log.buffer_bytes("kv", RPC0) == 42 * MIB
    assert log.buffer_bytes("kv") == 54 * MIB
    assert log.buffer_bytes("kv", "CPU") is None


def test_layers_that_lie_partly_on_a_device() -> None:
    log = read("b11434-lv4-partial-offload.log")
    assert in_mib(log) == [
        ("model", "CPU_Mapped", 92.10),
        ("model", RPC0, 47.71),
        ("output", "CPU", 0.19),
        ("kv", "CPU", 63.00),
        ("kv", RPC0, 27.00),
        ("compute", RPC0, 15.26),
        ("compute", "CPU", 18.64),
    ]
    assert log.cells == (4096,)


@pytest.mark.parametrize("name", ["b11434-default.log", "b10434-sigill-at-first-compute.log"])
def test_a_log_that_names_no_buffer_says_nothing_of_them(name: str) -> None:
    log = read(name)
    assert log.buffers == ()
    assert log.cells == ()
    for kind in ("model", "kv", "compute", "output", "state"):
        assert log.buffer_bytes(kind) is None  # type: ignore[arg-type]


def test_what_the_engine_was_built_for_is_read() -> None:
    features = read("b11434-lv4-f16-np2.log").cpu_features
    assert {"AVX2", "AVX512_VNNI", "REPACK"} <= features
    assert "AMX_INT8" not in features


@pytest.mark.parametrize(
    "disguise",
    [
        pytest.param(lambda line: line, id="as it is"),
        pytest.param(lambda line: line.split(" I ", 1)[-1], id="without prefix"),
        pytest.param(lambda line: f"\x1b[34m{line[:14]}\x1b[0m\x1b[32m I \x1b[0m{line[14:]}\x1b[0m", id="coloured"),
        pytest.param(lambda line: line.replace(".", ","), id="with decimal commas"),
        pytest.param(lambda line: line.rstrip() + "\r\n", id="with Windows line ends"),
        pytest.param(lambda line: json.dumps({"type": "log", "msg": line}), id="as JSON"),
    ],
)
def test_the_same_figures_in_every_dress(disguise: object) -> None:
    lines = (LOGS / "b11434-lv4-f16-np2.log").read_text(encoding="utf-8").splitlines()
    dressed = read_log(disguise(line) for line in lines)  # type: ignore[operator]
    plain = read_log(lines)
    assert (dressed.buffers, dressed.cells, dressed.context) == (plain.buffers, plain.cells, plain.context)


def test_the_dry_pass_before_the_load_is_forgotten() -> None:
    lines = (LOGS / "b11434-lv4-f16-np2.log").read_text(encoding="utf-8").splitlines()
    dry = [line.replace("235.16", "0.00").replace("24.00", "0.00").replace("30.00", "0.00") for line in lines]
    assert read_log([*dry, *lines]).buffers == read_log(lines).buffers
    assert read_log([*dry, *lines]).cells == (4096, 1024)


def test_a_second_context_of_the_same_model_is_held_beside_the_first() -> None:
    """That of the blocks that guess ahead (MTP)."""
    log = read_log(
        [
            "load_tensors: loading model tensors, this can take a while... (load_mode = mmap)",
            "load_tensors:   CPU_Mapped model buffer size =   235.16 MiB",
            "llama_context: constructing llama_context",
            "llama_context: n_ctx                 = 1024",
            "llama_kv_cache:        CPU KV buffer size =    18.00 MiB",
            "llama_context: constructing llama_context",
            "llama_context: n_ctx                 = 1024",
            "llama_kv_cache:        CPU KV buffer size =     9.00 MiB",
        ]
    )
    assert in_mib(log) == [("model", "CPU_Mapped", 235.16), ("kv", "CPU", 18.0), ("kv", "CPU", 9.0)]
    assert log.buffer_bytes("kv") == 27 * MIB
    assert log.context == {"n_ctx": 1024}


@pytest.mark.parametrize(
    ("buffer_type", "device"),
    [
        ("CPU", "CPU"),
        ("CPU_Mapped", "CPU"),
        ("CPU_REPACK", "CPU"),
        ("CUDA_Host", "CPU"),
        ("Vulkan_Host", "CPU"),
        ("CUDA0", "CUDA0"),
        ("MTL0_Mapped", "MTL0"),
        (RPC0, RPC0),
    ],
)
def test_pinned_and_mapped_buffers_lie_in_the_memory_of_their_device(buffer_type: str, device: str) -> None:
    log = read_log([f"load_tensors: {buffer_type} model buffer size =     1.00 MiB"])
    assert [buffer.placed_on for buffer in log.of_kind("model")] == [device]


def test_recurrent_state_is_a_kind_of_its_own() -> None:
    log = read_log(["llama_memory_recurrent:        CPU RS buffer size =    19.27 MiB"])
    assert log.buffer_bytes("state") == round(19.27 * MIB)
    assert log.buffer_bytes("kv") is None


def test_a_buffer_of_a_kind_that_is_not_known_is_passed_over() -> None:
    assert read_log(["ggml_gallocr:   CPU mystery buffer size =     1.00 MiB"]).buffers == ()


def test_a_buffer_without_a_figure_is_passed_over() -> None:
    assert read_log(["llama_kv_cache: CPU KV buffer size =", "llama_kv_cache: CPU KV buffer size = nan MiB"]) == (
        EngineLog()
    )


def test_checkpoints_add_up() -> None:
    """Lines of a run of gemma-3-270m with two prompts of 600 tokens."""
    line = (
        "0.05.310.271 I slot create_check: id  0 | task 2 | created context checkpoint {} of 32 "
        "(pos_min = {}, pos_max = {}, n_tokens = {}, size = {} MiB)"
    )
    log = read_log([line.format(1, 0, 83, 84, "1.233"), line.format(2, 84, 595, 596, "7.507")])
    assert log.checkpoints_bytes == round(1.233 * MIB) + round(7.507 * MIB)


def test_of_the_prompt_cache_the_last_word_counts() -> None:
    line = "1.00.000.000 I srv        update:  - cache state: {} prompts, {} MiB (limits: 8192.000 MiB, 8192 tokens)"
    log = read_log([line.format(1, "20.250"), line.format(2, "31.125"), line.format(1, "10.875")])
    assert log.prompt_cache_bytes == round(10.875 * MIB)


def test_a_figure_is_never_further_off_than_its_last_digit() -> None:
    true_bytes = 12 * MIB + 345_678
    printed = read_log([f"llama_kv_cache: CPU KV buffer size = {true_bytes / MIB:.2f} MiB"]).buffer_bytes("kv")
    assert printed is not None
    assert abs(printed - true_bytes) <= ROUNDING_BYTES + 1
