"""Reading llama-server's log, by logs of real runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.engine.log import ROUNDING_BYTES, EngineLog, LoggedCache, read_line, read_log
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


def test_the_buffers_of_a_projector_are_none_of_the_model_s() -> None:
    log = read("b11434-lv4-mmproj.log")
    assert "CPU compute buffer size =     0.22 MiB" in (LOGS / "b11434-lv4-mmproj.log").read_text(encoding="utf-8")
    assert in_mib(log) == [
        ("model", "CPU_Mapped", 92.10),
        ("output", "CPU", 0.19),
        ("kv", "CPU", 11.25),
        ("compute", "CPU", 15.14),
    ]
    assert log.loaded


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
        pytest.param(lambda line: f"2026-11-29T15:42:00.123456789Z {line}", id="as docker stamps it"),
        pytest.param(lambda line: f"llama-1  | {line}", id="as docker compose prefixes it"),
        pytest.param(lambda line: f"Nov 29 15:42:00 nas llama-server[1234]: {line}", id="as journald has it"),
        pytest.param(lambda line: f"[46231] {line}", id="as a router hands it on"),
        pytest.param(lambda line: f'time=2026-11-29T15:42:00Z level=INFO msg="{line}"', id="inside another log"),
    ],
)
def test_the_same_figures_in_every_dress(disguise: object) -> None:
    lines = (LOGS / "b11434-lv4-f16-np2.log").read_text(encoding="utf-8").splitlines()
    dressed = read_log(disguise(line) for line in lines)  # type: ignore[operator]
    plain = read_log(lines)
    assert (dressed.buffers, dressed.caches, dressed.context) == (plain.buffers, plain.caches, plain.context)
    assert dressed.cpu_features == plain.cpu_features


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


# Of other builds, forks and machines --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["llama_kv_cache", "llama_kv_cache_init", "llama_kv_cache_unified", "llama_kv_cache_iswa"]
)
def test_builds_that_call_the_cache_otherwise(name: str) -> None:
    log = read_log(
        [
            f"{name}:      CUDA0 KV buffer size =  1152.00 MiB",
            f"{name}: size = 1152.00 MiB (  8192 cells,  36 layers,  1/ 1 seqs), K (f16):  576.00 MiB, "
            "V (f16):  576.00 MiB",
        ]
    )
    assert log.buffer_bytes("kv") == 1152 * MIB  # and not twice
    assert log.caches == (
        LoggedCache(cells=8192, layers=36, k_type="f16", v_type="f16", k_bytes=576 * MIB, v_bytes=576 * MIB),
    )


@pytest.mark.parametrize("name", ["llama_context", "llama_new_context_with_model", "llama_init_from_model"])
def test_builds_that_call_the_context_otherwise(name: str) -> None:
    log = read_log([f"{name}: n_ctx         = 8192", f"{name}: n_ctx_per_seq = 4096"])
    assert log.context == {"n_ctx": 8192, "n_ctx_seq": 4096}


def test_compute_of_the_context_and_of_the_scheduler_is_one_kind() -> None:
    for place in ("llama_context", "sched_reserve", "llama_new_context_with_model"):
        assert read_log([f"{place}:      CUDA0 compute buffer size =   304.75 MiB"]).buffer_bytes("compute")


@pytest.mark.parametrize("cache_type", ["turbo3", "turbo4", "oscar2", "iq4_nl", "bf16"])
def test_types_of_forks_are_taken_as_they_are(cache_type: str) -> None:
    line = (
        f"llama_kv_cache: size =  117.00 MiB ( 32768 cells,   9 layers,  1/1 seqs), K ({cache_type}):   58.50 MiB, "
        f"V ({cache_type}):   58.50 MiB"
    )
    assert [(cache.k_type, cache.v_type) for cache in read_log([line]).caches] == [(cache_type, cache_type)]


def test_keys_alone_and_no_types_at_all() -> None:
    keys_alone = "llama_kv_cache: size = 2196.00 MiB ( 32768 cells,  61 layers,  1/1 seqs), K (f16): 2196.00 MiB"
    nothing = "llama_kv_cache: size = 2196.00 MiB ( 32768 cells,  61 layers,  1/1 seqs)"
    log = read_log([keys_alone, nothing])
    assert [(cache.k_bytes, cache.v_bytes) for cache in log.caches] == [(2196 * MIB, None), (None, None)]
    assert [cache.k_type for cache in log.caches] == ["f16", ""]


def test_comma_decimals_of_a_fork() -> None:
    log = read_log(["llama_kv_cache_init:      CUDA0 KV buffer size =  3072,00 MiB", "KV self size  = 3072,00 MiB"])
    assert log.buffer_bytes("kv") == 3072 * MIB


def test_a_check_of_the_compute_buffer_is_not_a_second_one() -> None:
    log = read_log(
        [
            "sched_reserve:        CPU compute buffer size =    23.28 MiB",
            "~llama_context:        CPU compute buffer size is  23.2822 MiB, matches expectation of  23.2822 MiB",
            "~llama_context: CUDA0 compute buffer size of 515.0000 MiB, does not match expectation of 512.0000 MiB",
        ]
    )
    assert log.buffer_bytes("compute") == round(23.28 * MIB)


@pytest.mark.parametrize(
    ("buffer_type", "device"),
    [("Meta()", "Meta()"), ("HTP0-REPACK", "HTP0"), ("ROCm_Host", "CPU"), ("CUDA_Split", "CUDA_Split")],
)
def test_devices_of_other_backends(buffer_type: str, device: str) -> None:
    log = read_log([f"load_tensors: {buffer_type} model buffer size =     1.00 MiB"])
    assert [log.device_of(buffer) for buffer in log.buffers] == [device]


DRY_THEN_REAL = """
load_tensors: loading model tensors, this can take a while... (load_mode = none)
load_tensors:          CPU model buffer size =     0.00 MiB
llama_kv_cache:        CPU KV buffer size =     0.00 MiB
llama_kv_cache: size =   45.00 MiB (  2048 cells,  30 layers,  1/1 seqs), K (f16):   22.50 MiB, V (f16):   22.50 MiB
sched_reserve:        CPU compute buffer size =    16.64 MiB
load_tensors: loading model tensors, this can take a while... (load_mode = mmap)
load_tensors:   CPU_Mapped model buffer size =    92.10 MiB
llama_kv_cache:        CPU KV buffer size =    45.00 MiB
llama_kv_cache: size =   45.00 MiB (  2048 cells,  30 layers,  1/1 seqs), K (f16):   22.50 MiB, V (f16):   22.50 MiB
sched_reserve:        CPU compute buffer size =    16.64 MiB
""".strip().splitlines()
"""Of b11434 with `--verbosity 5`, which prints the dry pass, too."""


def test_lines_of_the_dry_pass_are_not_counted_twice() -> None:
    log = read_log(DRY_THEN_REAL)
    assert in_mib(log) == [("model", "CPU_Mapped", 92.1), ("kv", "CPU", 45.0), ("compute", "CPU", 16.64)]
    assert log.cells == (2048,)


def test_a_second_model_stands_beside_the_first() -> None:
    """A draft is loaded after the model; it replaces nothing."""
    draft = [line.replace("92.10", "10.00").replace("45.00", "5.00") for line in DRY_THEN_REAL[5:]]
    log = read_log([*DRY_THEN_REAL, *draft])
    assert log.buffer_bytes("model") == round(92.1 * MIB) + 10 * MIB
    assert log.buffer_bytes("kv") == 50 * MIB


# The table of devices ---------------------------------------------------------------------------------------


def test_remote_devices_are_known_under_their_listed_names() -> None:
    log = read("b11434-lv4-two-devices.log")
    assert log.devices == (("RPC0", "127.0.0.1:50052"), ("RPC1", "127.0.0.1:50053"))
    assert {log.device_of(buffer) for buffer in log.of_kind("kv")} == {"RPC0", "RPC1"}
    assert [log.type_of(buffer) for buffer in log.of_kind("model")] == ["CPU_Mapped", "RPC0", "RPC1"]


def test_a_remote_device_that_was_not_introduced_keeps_its_name() -> None:
    log = read_log([f"load_tensors: {RPC1} model buffer size =     1.00 MiB"])
    assert [log.device_of(buffer) for buffer in log.buffers] == [RPC1]


def test_the_tables_before_the_load_and_at_the_end() -> None:
    log = read("b11434-lv4-partial-offload.log")
    for table, host in ((log.memory_before, 154), (log.memory_at_end, 173)):
        assert [(row.name, row.self_bytes // MIB) for row in table] == [("RPC0", 89), ("Host", host)]
        assert (table[0].description, table[0].total_bytes, table[0].free_bytes) == (
            "127.0.0.1:50052",
            24105 * MIB,
            24105 * MIB,
        )
        assert (table[0].unaccounted_bytes, table[1].unaccounted_bytes) == (-89 * MIB, None)


def test_the_same_tables_as_events() -> None:
    log = read("b11434-jsonl-lv4-q4.log")
    assert [(row.name, row.self_bytes // MIB) for row in log.memory_before] == [("Host", 261), ("CPU_REPACK", 12)]
    assert [(row.name, row.self_bytes // MIB) for row in log.memory_at_end] == [("Host", 273), ("CPU_REPACK", 12)]


TABLE_HEAD = (
    "common_memory_breakdown_print: | memory breakdown [MiB] | total free self model context compute unaccounted |"
)


@pytest.mark.parametrize(
    ("row", "unaccounted_mib"),
    [
        ("|   - CUDA0 (RTX 4090) | 24077 = 945 + (19187 = 17904 +  384 +  898) +  3945 |", 3945),
        ("|   - CUDA0 (RTX 4090) | 24077 = 945 + (19187 = 17904 +  384 +  898) + -5718 |", -5718),
        ("|   - CUDA0 (RTX 4090) | 24077 = 945 + (19187 = 17904 +  384 +  898) + 17592186036877 |", -7539),
        ("|   - CUDA0 (RTX 3090) | 24077 = 945 + (19187 = 17904 +  384 +  898) + 17592186023856 |", -20560),
    ],
)
@pytest.mark.parametrize("printer", ["common_memory_breakdown_print", "llama_memory_breakdown_print"])
def test_what_is_unaccounted_for_may_be_below_zero_or_wrapped(printer: str, row: str, unaccounted_mib: int) -> None:
    (device,) = read_log([TABLE_HEAD, f"{printer}: {row}"]).memory_before
    assert device.unaccounted_bytes == unaccounted_mib * MIB
    assert (device.free_bytes, device.self_bytes) == (945 * MIB, 19187 * MIB)


@pytest.mark.parametrize(
    "line",
    [
        '{"type":"fit_memory_breakdown","data":{"unit":"MiB","rows":[{"kind":"host","name":"Ho',
        '{"type":"fit_memory_breakdown","data":{"unit":"MiB"}}',
        '{"type":"fit_memory_breakdown","data":{"rows":[{"name":"Host","self":"much"}]}}',
        "common_memory_breakdown_print: |   - CUDA0 (RTX 4090) | 24077 = 945 + (19187 = 17904 |",
    ],
)
def test_a_table_that_was_cut_off_says_nothing(line: str) -> None:
    assert read_log([line]) == EngineLog()


@pytest.mark.parametrize("name", ["b11434-lv4-two-devices.log", "b11434-jsonl-lv4-q4.log"])
def test_a_log_that_is_cut_off_anywhere_is_read_as_far_as_it_goes(name: str) -> None:
    lines = (LOGS / name).read_text(encoding="utf-8").splitlines()
    whole = [read_log(lines[: count + 1]) for count in range(len(lines))]
    for before, after, line in zip([EngineLog(), *whole], whole, lines, strict=False):
        for cut in {0, 1, len(line) // 3, len(line) // 2, len(line) - 1}:
            read = read_line(before, line[:cut])
            assert len(read.buffers) in (len(before.buffers), len(after.buffers))
            assert len(read.caches) in (len(before.caches), len(after.caches))


@pytest.mark.parametrize(
    "line",
    [
        "load_tensors:   CPU_Mapped model buffer size = {}.00 MiB",
        "llama_context: n_ctx         = {}",
        "llama_kv_cache: size = 1.00 MiB ( {} cells,   3 layers,  4/1 seqs), K (f16): 0.50 MiB, V (f16): 0.50 MiB",
        "slot created context checkpoint 1 of 32 (pos_min = 0, size = {}.000 MiB)",
        "srv  update:  - cache state: 1 prompts, {}.000 MiB (limits: 32.000 MiB, 1024 tokens)",
        "common_memory_breakdown_print: |   - Host | {} = 1 + 1 + 1 |",
        '{{"type":"log","time":1e400,"level":"info","msg":"{}"}}',
        '{{"event":"fit_memory_breakdown","data":{{"rows":[{{"name":"x","self":1e400,"model":{},"context":0}}]}}}}',
    ],
)
def test_digits_without_end_are_no_figure(line: str) -> None:
    assert read_log([line.format("9" * 5000)]) == EngineLog()


@pytest.mark.parametrize(
    ("line", "places"),
    [
        ("using device CUDA0 (NVIDIA GeForce RTX 3090) (0000:01:00.0) - 23306 MiB free", {"CUDA0": "0000:01:00.0"}),
        ("using device Vulkan0 (Radeon 8060S Graphics (RADV GFX1151)) (0000:C5:00.0)", {"Vulkan0": "0000:c5:00.0"}),
        ("using device RPC0 (127.0.0.1:50052) (unknown id) - 24105 MiB free", {}),
        ("using device MTL0 (Apple M1 Max) - 25999 MiB free", {}),
    ],
)
def test_where_a_device_sits_is_read_where_it_is_said(line: str, places: dict[str, str]) -> None:
    assert read_log([f"0.00.810.469 I llama_prepare_model_devices: {line}"]).places == places
