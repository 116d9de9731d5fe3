"""Public reports of launchers failing (`evidence/CASES.md`, sections 3, 4 and 6), by their numbers there.

Those about single figures (20, 45 and 53 to 55 among them) are with the figures, too; here is what a person is told.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import made
import pytest
from fake_engines import write_script
from made_runs import measured_as_planned

from planner import Hardware, Launch, Model, Verdict, predict
from planner.cli.render import launch_summary
from planner.engine.arguments import server_arguments
from planner.engine.find import Engine
from planner.engine.log import read_log
from planner.engine.server import LlamaServer
from planner.fit import MAIN_CACHE_TYPES, fit_layers, make_grid
from planner.launch import CacheType, resolve_context
from planner.reconcile.reconciliation import reconcile
from planner.units import GIB, MIB

LOGS = Path(__file__).parents[1] / "data" / "logs"
MACHINE = Hardware.simulate(ram=32 * GIB)
CARD = Hardware.simulate(ram=32 * GIB, vram=[24 * GIB])


# 3. llama-server flags --------------------------------------------------------------------------------------


def test_43_slots_that_were_left_out_share_one_small_context(engine: Engine) -> None:
    shared, divided = Launch(ctx_size=1024), Launch(ctx_size=1024, parallel=4)
    assert (resolve_context(shared, 8192).n_ctx_seq, resolve_context(shared, 8192).n_stream) == (1024, 1)
    assert (resolve_context(divided, 8192).n_ctx_seq, resolve_context(divided, 8192).n_stream) == (256, 4)
    for unified, flag in ((True, "--kv-unified"), (False, "--no-kv-unified")):
        arguments = server_arguments(Launch.for_users(4, 1024, unified=unified), Path("m.gguf"), engine.flags)
        assert arguments[arguments.index("--parallel") + 1] == "4"
        assert flag in arguments


def test_44_two_slots_halve_the_context_and_the_answer_says_so(gemma: Model) -> None:
    plan = predict(gemma, Launch(ctx_size=8192, parallel=2), MACHINE)
    assert "2 people, 4,096 tokens each (llama-server: 8,192 in total)" in launch_summary(plan.launch, plan)


def test_45_the_prompt_cache_takes_8_gib_of_the_host_in_time(gemma: Model) -> None:
    plan = predict(gemma, Launch(ctx_size=8192, parallel=1), CARD)
    assert plan.growth_bytes(component="prompt_cache", device="CPU") == 8192 * MIB
    small = predict(gemma, Launch(ctx_size=8192, parallel=1), Hardware.simulate(ram=6 * GIB))
    assert small.verdict is Verdict.TIGHT
    line = "srv update:  - cache state: 27 prompts, 7377.676 MiB (limits: 8192.000 MiB, 131072 tokens, 8589934592 est)"
    assert read_log([line]).prompt_cache_bytes == round(7377.676 * MIB)


def test_45_a_container_that_was_filled_by_the_prompt_cache_is_explained(gemma: Model) -> None:
    plan = predict(gemma, Launch.for_users(2, 2048), MACHINE, prompt_tokens=600)
    grown = round(7377.676 * MIB)
    measurement = measured_as_planned(plan, resident_bytes=plan.resident_bytes() + grown)
    log = replace(measurement.log, prompt_cache_bytes=grown)
    assert reconcile(plan, replace(measurement, log=log)).resident.cause == ("the prompt cache has grown (+7.2 GiB)")


def test_47_checkpoints_grow_without_a_prompt_cache(gemma: Model) -> None:
    launch = Launch(ctx_size=32768, parallel=3, cache_ram=0)
    assert predict(gemma, launch, MACHINE).growth_bytes(component="checkpoints") > 0
    assert predict(gemma, replace(launch, ctx_checkpoints=0), MACHINE).growth_bytes() == 0


def test_47_a_slot_keeps_32_checkpoints_unless_it_is_told_otherwise(gemma: Model) -> None:
    def most(launch: Launch) -> int:
        plan = predict(gemma, launch, MACHINE)
        return plan.growth_bytes(component="checkpoints") + plan.resident_bytes(component="checkpoints")

    asked = Launch(ctx_size=32768, parallel=3, cache_ram=0)
    assert most(asked) == most(replace(asked, ctx_checkpoints=32)) == 32 * most(replace(asked, ctx_checkpoints=1))
    assert most(replace(asked, ctx_checkpoints=128)) == 4 * most(asked)


def test_48_what_does_not_fit_is_not_left_to_the_server(gemma: Model) -> None:
    small = Hardware.simulate(ram=GIB, vram=[300 * MIB])
    assert predict(gemma, Launch(ctx_size=32768, parallel=8), small).verdict is Verdict.TOO_BIG
    # Layers are written out where not all of them fit, so that nothing is left to --fit.
    fitted = fit_layers(gemma, Launch(ctx_size=32768, parallel=4), Hardware.simulate(ram=32 * GIB, vram=[500 * MIB]))
    assert fitted.n_gpu_layers is not None or fitted.device == "none"


def test_49_a_log_without_buffers_is_no_log_of_nothing(gemma: Model) -> None:
    plan = predict(gemma, Launch(ctx_size=8192, parallel=2), MACHINE, prompt_tokens=4)
    log = read_log((LOGS / "b11434-default.log").read_text(encoding="utf-8").splitlines())
    rows = reconcile(plan, measured_as_planned(plan, log=log)).reserved
    assert rows
    assert {(row.measured_bytes, row.delta_bytes, row.cause) for row in rows} == {
        (None, None, "this engine's log does not say")
    }


def test_49_a_measured_server_is_told_to_name_its_buffers(tmp_path: Path) -> None:
    echo = write_script(tmp_path / "llama-server", 'echo "$@"\nexec sleep 600')
    with LlamaServer([str(echo)], ready_timeout_s=1) as server:
        server.quiet_log(1.0)
        assert "--verbosity 4" in server.log_text


def test_50_a_third_cache_of_a_draft_is_counted_once_too() -> None:
    """Case 50: SWA prints two caches, MTP adds one, and each prints its size again in a second line."""
    sizes = {"llama_kv_cache": (512.0, 765.0), "llama_kv_cache_unified": (32.0,)}
    lines = [
        line
        for name, mibs in sizes.items()
        for mib in mibs
        for line in (
            f"{name}:      CUDA0 KV buffer size = {mib:8.2f} MiB",
            f"{name}: size = {mib:7.2f} MiB (  8192 cells,  16 layers,  4/1 seqs), K (f16): {mib / 2:7.2f} MiB, "
            f"V (f16): {mib / 2:7.2f} MiB",
        )
    ]
    log = read_log(lines)
    assert (log.buffer_bytes("kv"), len(log.caches)) == (1309 * MIB, 3)


def test_50_two_passes_two_caches_and_their_sums_are_counted_once() -> None:
    lines = (LOGS / "b11434-lv4-f16-np2.log").read_text(encoding="utf-8").splitlines()
    start = next(index for index, line in enumerate(lines) if "loading model tensors" in line)
    real = lines[start:]
    dry = [line.replace("235.16", "0.00").replace("12.66", "0.00") for line in real if "model loaded" not in line]
    log = read_log([*lines[:start], *dry, *real])
    assert log.buffers == read_log(lines).buffers
    assert log.buffer_bytes("kv") == 54 * MIB  # two caches, and not their two sums with them


# 4. Quantised caches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_type", ["q8_0", "q4_0", "q5_1"])
def test_51_quantised_values_need_flash_attention_and_get_it(
    gemma: Model, engine: Engine, cache_type: CacheType
) -> None:
    launch = Launch.for_users(2, 2048, cache_type=cache_type)
    arguments = server_arguments(launch, Path("m.gguf"), engine.flags)
    assert arguments[arguments.index("--flash-attn") + 1] == "on"
    refused = predict(gemma, replace(launch, flash_attn="off"), MACHINE)
    assert refused.verdict is Verdict.REFUSED
    plain = server_arguments(Launch.for_users(2, 2048), Path("m.gguf"), engine.flags)
    assert plain[plain.index("--flash-attn") + 1] == "auto"


@pytest.mark.parametrize(
    ("k_type", "v_type", "warned"),
    [
        ("f16", "f16", False),
        ("q8_0", "q8_0", False),
        ("q4_0", "q4_0", False),
        ("q4_1", "q8_0", True),
        ("q8_0", "q4_0", True),
        ("q5_1", "q5_1", True),
        ("f16", "q8_0", True),
    ],
)
def test_52_mixed_types_are_slow_on_a_card(gemma: Model, k_type: CacheType, v_type: CacheType, warned: bool) -> None:
    launch = Launch(ctx_size=4096, parallel=1, cache_type_k=k_type, cache_type_v=v_type)
    assert any("no flash attention for" in note for note in predict(gemma, launch, CARD).notes) == warned
    assert not any("no flash attention for" in note for note in predict(gemma, launch, MACHINE).notes)


def test_52_what_is_recommended_is_never_mixed(gemma: Model) -> None:
    assert MAIN_CACHE_TYPES == ("f16", "q8_0", "q4_0")
    for cell in make_grid(gemma, CARD, contexts=(4096,), users=(2,)).cells:
        assert cell.plan.launch.cache_type_k == cell.plan.launch.cache_type_v


@pytest.mark.parametrize("cache_type", ["q8_0", "q4_0"])
def test_53_heads_that_are_not_whole_blocks_are_refused_before_the_start(cache_type: CacheType) -> None:
    stablelm = made.llama(attention__key_length=80, attention__value_length=80)
    plan = predict(stablelm, Launch(ctx_size=4096, parallel=1, cache_type_k=cache_type), MACHINE)
    assert plan.verdict is Verdict.REFUSED
    assert "heads of 80 elements" in plan.verdict_reason


def test_54_a_build_that_leaves_the_window_in_f16_is_told_by_its_log(gemma: Model) -> None:
    plan = predict(gemma, Launch.for_users(1, 32768, cache_type="q8_0"), MACHINE, prompt_tokens=600)
    full, window = (a.reserved_bytes for a in plan.allocations if a.component == "kv")
    in_f16 = window * 64 // 34
    sizes = ((full / MIB, "q8_0"), (in_f16 / MIB, "f16"))
    lines = [
        line
        for size, name in sizes
        for line in (
            f"llama_kv_cache:        CPU KV buffer size = {size:8.2f} MiB",
            f"llama_kv_cache: size = {size:7.2f} MiB (  1024 cells,   9 layers,  1/1 seqs), "
            f"K ({name}): {size / 2:7.2f} MiB, V ({name}): {size / 2:7.2f} MiB",
        )
    ]
    rows = reconcile(plan, measured_as_planned(plan, log=read_log(lines))).reserved
    kv = next(row for row in rows if row.component == "kv")
    assert kv.cause == "this build keeps keys in f16, not q8_0 and values in f16, not q8_0"


def test_55_one_buffer_may_be_too_large_where_all_together_fit(gemma: Model) -> None:
    limited = Hardware.simulate(ram=32 * GIB, vram=[24 * GIB], max_allocation=2 * GIB)
    launch = Launch(ctx_size=32768 * 64, parallel=64)
    plan = predict(gemma, launch, limited)
    assert plan.verdict is Verdict.TOO_BIG
    assert "in one piece, more than the 2.0 GiB it can allocate" in plan.verdict_reason
    assert predict(gemma, launch, CARD).verdict is not Verdict.TOO_BIG


# 6. Logs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "line", "mib"),
    [
        (67, "llama_kv_cache_init:      CUDA0 KV buffer size =  3072,00 MiB", 3072.0),
        (68, "llama_kv_cache_unified:      CUDA0 KV buffer size =  1152.00 MiB", 1152.0),
        (68, "llama_kv_cache_init:      Metal KV buffer size =  1152.00 MiB", 1152.0),
        (68, "init:      CUDA0 KV buffer size =  1152.00 MiB", 1152.0),
        (69, "0.48.540.324 I llama_kv_cache:        CPU KV buffer size =    24.00 MiB", 24.0),
        (
            69,
            "\x1b[0m\x1b[34m0.48.540.324\x1b[0m \x1b[32mI\x1b[0m llama_kv_cache: CPU KV buffer size = 24.00 MiB\x1b[0m",
            24.0,
        ),
        (69, "[46231] 0.48.540.324 I llama_kv_cache:        CPU KV buffer size =    24.00 MiB", 24.0),
        (69, "Nov 29 15:42:00 nas ollama[12]: llama_kv_cache:        CPU KV buffer size =    24.00 MiB", 24.0),
        (69, 'time=2026-11-29T15:42:00Z level=INFO msg="llama_kv_cache: CPU KV buffer size = 24.00 MiB"', 24.0),
        (70, "llama_kv_cache:     Meta() KV buffer size =   512.00 MiB", 512.0),
        (70, "llama_kv_cache:       MTL0 KV buffer size =   512.00 MiB", 512.0),
        (70, "llama_kv_cache: RPC0[10.0.0.7:50052] KV buffer size =    27.00 MiB", 27.0),
    ],
)
def test_a_line_in_whatever_dress_is_read(case: int, line: str, mib: float) -> None:
    assert read_log([line]).buffer_bytes("kv") == round(mib * MIB), case


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("llama_context: n_ctx_per_seq = 4096", "n_ctx_seq", 4096),
        ("llama_context: n_ctx_seq     = 4096", "n_ctx_seq", 4096),
        ("llama_new_context_with_model: n_ctx      = 8192", "n_ctx", 8192),
    ],
)
def test_68_a_setting_is_known_by_its_older_names(line: str, name: str, value: int) -> None:
    assert read_log([line]).context == {name: value}


@pytest.mark.parametrize("place", ["llama_new_context_with_model", "llama_context", "sched_reserve"])
def test_68_compute_is_known_wherever_it_is_reserved(place: str) -> None:
    assert read_log([f"{place}:      CUDA0 compute buffer size =   304.00 MiB"]).buffer_bytes("compute") == 304 * MIB


@pytest.mark.parametrize(
    ("buffer", "device"),
    [
        ("CUDA_Split", "CUDA_Split"),
        ("HTP0-REPACK", "HTP0"),
        ("MTL0_Mapped", "MTL0"),
        ("ROCm_Host", "CPU"),
        ("RPC0[10.0.0.7:50052]", "RPC0[10.0.0.7:50052]"),
    ],
)
def test_70_whose_memory_a_buffer_is_shows_in_its_name(buffer: str, device: str) -> None:
    (found,) = read_log([f"load_tensors: {buffer} model buffer size =  1000.00 MiB"]).buffers
    assert (found.placed_on, found.size_bytes) == (device, 1000 * MIB)


def test_71_types_of_forks_do_not_stop_the_reader() -> None:
    line = "llama_kv_cache: size =  117.00 MiB ( 32768 cells,   9 layers,  1/1 seqs), "
    line += "K (turbo3):   58.50 MiB, V (oscar2):   58.50 MiB"
    (cache,) = read_log([line]).caches
    assert (cache.k_type, cache.v_type, cache.cells) == ("turbo3", "oscar2", 32768)


def test_72_a_check_of_a_buffer_is_not_another_buffer() -> None:
    line = "~llama_context:      CUDA0 compute buffer size is 515.0000 MiB, matches expectation of 515.0000 MiB"
    assert read_log([line]).buffers == ()
