"""The arguments of a launch, for builds old and new."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.engine.arguments import server_arguments
from planner.engine.find import Engine, parse_flags
from planner.errors import EngineError
from planner.launch import CACHE_TYPES, Launch, LoadMode

MODEL = Path("/models/a model.gguf")
B9444 = parse_flags((Path(__file__).parents[2] / "data" / "help" / "b9444.txt").read_text(encoding="utf-8"))
"""Half a year older than the embedded build."""


def test_every_setting_of_a_launch_is_spelled_out(engine: Engine) -> None:
    launch = Launch(
        ctx_size=16384,
        parallel=4,
        kv_unified=True,
        cache_type_k="q8_0",
        cache_type_v="q4_0",
        flash_attn="on",
        batch_size=1024,
        ubatch_size=256,
        swa_full=True,
        repack=False,
        load_mode="none",
        cache_ram=512,
        ctx_checkpoints=8,
        embeddings=True,
        device="none",
    )
    assert server_arguments(launch, MODEL, engine.flags) == [
        *("--model", "/models/a model.gguf"),
        *("--ctx-size", "16384"),
        *("--parallel", "4"),
        "--kv-unified",
        *("--cache-type-k", "q8_0"),
        *("--cache-type-v", "q4_0"),
        *("--flash-attn", "on"),
        *("--batch-size", "1024"),
        *("--ubatch-size", "256"),
        *("--cache-ram", "512"),
        *("--ctx-checkpoints", "8"),
        "--swa-full",
        "--no-repack",
        *("--load-mode", "none"),
        "--embeddings",
        *("--device", "none"),
    ]


def test_defaults_that_decide_memory_are_written_out_and_the_others_left_out(engine: Engine) -> None:
    assert server_arguments(Launch(), MODEL, engine.flags) == [
        *("--model", "/models/a model.gguf"),
        *("--cache-type-k", "f16"),
        *("--cache-type-v", "f16"),
        *("--flash-attn", "auto"),
        *("--batch-size", "2048"),
        *("--ubatch-size", "512"),
        *("--cache-ram", "8192"),
        *("--ctx-checkpoints", "32"),
    ]


@pytest.mark.parametrize(
    ("parallel", "kv_unified", "flag"),
    [
        (2, None, "--no-kv-unified"),
        (2, False, "--no-kv-unified"),
        (2, True, "--kv-unified"),
        (None, True, "--kv-unified"),
        (None, False, "--kv-unified"),
    ],
)
def test_whether_the_cache_is_shared_is_always_said_with_a_number_of_slots(
    engine: Engine, parallel: int | None, kv_unified: bool | None, flag: str
) -> None:
    arguments = server_arguments(Launch(parallel=parallel, kv_unified=kv_unified), MODEL, engine.flags)
    assert [argument for argument in arguments if "kv-unified" in argument] == [flag]
    assert ("--parallel" in arguments) == (parallel is not None)


@pytest.mark.parametrize(
    ("launch", "flag"),
    [
        (Launch(parallel=1), "--no-kv-unified"),
        (Launch(parallel=1, kv_unified=True), "--kv-unified"),
        (Launch(cache_ram=0), "--cache-ram"),
        (Launch(ctx_checkpoints=0), "--ctx-checkpoints"),
    ],
)
def test_an_old_build_goes_without_a_flag_that_changes_nothing(engine: Engine, launch: Launch, flag: str) -> None:
    whole = server_arguments(launch, MODEL, engine.flags)
    old = server_arguments(launch, MODEL, engine.flags - {flag})
    assert flag in whole
    assert flag not in old


@pytest.mark.parametrize(
    ("launch", "flag"),
    [
        (Launch(parallel=2), "--no-kv-unified"),
        (Launch(parallel=2, kv_unified=True), "--kv-unified"),
        (Launch(), "--cache-ram"),
        (Launch(), "--ctx-checkpoints"),
        (Launch(), "--flash-attn"),
        (Launch(swa_full=True), "--swa-full"),
        (Launch(repack=False), "--no-repack"),
        (Launch(load_mode="none"), "--load-mode"),
        (Launch(device="none"), "--device"),
        (Launch(embeddings=True), "--embeddings"),
        (Launch(mmproj="mmproj.gguf"), "--mmproj"),
        (Launch(mmproj="mmproj.gguf", mmproj_offload=False), "--no-mmproj-offload"),
    ],
)
def test_an_old_build_without_a_flag_that_matters_is_refused_by_name(engine: Engine, launch: Launch, flag: str) -> None:
    with pytest.raises(EngineError, match=f"knows no {flag}, which the launch needs") as error:
        server_arguments(launch, MODEL, engine.flags - {flag})
    assert "--engine" in error.value.hint


def test_a_cache_that_is_limited_to_nothing_or_without_limit_is_said(engine: Engine) -> None:
    assert "-1" in server_arguments(Launch(cache_ram=-1), MODEL, engine.flags)


@pytest.mark.parametrize("cache_type", CACHE_TYPES)
def test_keys_and_values_are_written_apart(engine: Engine, cache_type: str) -> None:
    launch = Launch(cache_type_k=cache_type, cache_type_v="f16")  # type: ignore[arg-type]
    arguments = server_arguments(launch, MODEL, engine.flags)
    assert arguments[arguments.index("--cache-type-k") + 1] == cache_type
    assert arguments[arguments.index("--cache-type-v") + 1] == "f16"


# An older build --------------------------------------------------------------------------------------------


def test_an_older_build_gets_what_it_knows() -> None:
    launch = Launch.for_users(2, 2048, unified=True, cache_type="q8_0")
    assert server_arguments(launch, MODEL, B9444) == [
        *("--model", "/models/a model.gguf"),
        *("--ctx-size", "4096"),
        *("--parallel", "2"),
        "--kv-unified",
        *("--cache-type-k", "q8_0"),
        *("--cache-type-v", "q8_0"),
        *("--flash-attn", "on"),
        *("--batch-size", "2048"),
        *("--ubatch-size", "512"),
        *("--cache-ram", "8192"),
        *("--ctx-checkpoints", "32"),
    ]


@pytest.mark.parametrize(
    ("mode", "words"), [("none", ["--no-mmap"]), ("mmap", ["--mmap"]), ("mmap+mlock", ["--mmap", "--mlock"])]
)
def test_an_older_build_loads_by_its_own_switches(mode: LoadMode, words: list[str]) -> None:
    assert server_arguments(Launch(load_mode=mode), MODEL, B9444)[-len(words) :] == words


@pytest.mark.parametrize(
    ("launch", "flag"), [(Launch(load_mode="dio"), "--load-mode"), (Launch(n_cpu_ffn=2), "--n-cpu-ffn")]
)
def test_what_an_older_build_lacks_and_a_launch_needs_is_refused(launch: Launch, flag: str) -> None:
    with pytest.raises(EngineError, match=f"knows no {flag}, which the launch needs"):
        server_arguments(launch, MODEL, B9444)
