"""The options that make a launch: what each is read as."""

from __future__ import annotations

import shlex

import click
import pytest

from planner import Launch
from planner.cli.options import launch_from, launch_options
from planner.errors import UsageError


def launch_of(words: str) -> Launch:
    """The launch behind these words."""

    @click.command()
    @launch_options
    def command(**options: object) -> Launch:
        return launch_from(options)

    launch: Launch = command.main(shlex.split(words), standalone_mode=False)
    return launch


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("", "n_gpu_layers", None),
        ("-ngl 20", "n_gpu_layers", 20),
        ("-mm mmproj.gguf", "mmproj", "mmproj.gguf"),
        ("", "mmproj_offload", True),
        ("--no-mmproj-offload", "mmproj_offload", False),
        ("-ngl 0", "n_gpu_layers", 0),
        ("-ngl all", "n_gpu_layers", None),
        ("-ngl auto", "n_gpu_layers", None),
        ("-ngl -1", "n_gpu_layers", None),
        ("--gpu-layers 7", "n_gpu_layers", 7),
        ("--n-gpu-layers 7", "n_gpu_layers", 7),
        ("-ts 3,1", "tensor_split", (3.0, 1.0)),
        ("-ts 3/1", "tensor_split", (3.0, 1.0)),
        ("--tensor-split .6,2.1,0", "tensor_split", (0.6, 2.1, 0.0)),
        ("-ot exps=CPU", "override_tensor", (("exps", "CPU"),)),
        ("-ot a=CPU,b=CUDA0", "override_tensor", (("a", "CPU"), ("b", "CUDA0"))),
        ("-ot a=CPU -ot b=CUDA0", "override_tensor", (("a", "CPU"), ("b", "CUDA0"))),
        ("-ot '^(?!x=1)=CPU'", "override_tensor", (("^(?!x=1)", "CPU"),)),
        (r"-ot 'blk\.[0-9]\.ffn_.*_exps=CPU'", "override_tensor", ((r"blk\.[0-9]\.ffn_.*_exps", "CPU"),)),
        ("-cmoe", "cpu_moe", True),
        ("--cpu-moe", "cpu_moe", True),
        ("", "cpu_moe", False),
        ("-ncmoe 12", "n_cpu_moe", 12),
        ("--n-cpu-moe 12", "n_cpu_moe", 12),
        ("-ncffn 4", "n_cpu_ffn", 4),
        ("", "kv_offload", True),
        ("-kvo", "kv_offload", True),
        ("-nkvo", "kv_offload", False),
        ("--no-kv-offload", "kv_offload", False),
        ("", "split_mode", "layer"),
        ("-sm none", "split_mode", "none"),
        ("-sm layer", "split_mode", "layer"),
        ("-mg 1", "main_gpu", 1),
        ("", "device", None),
        ("-dev none", "device", "none"),
        ("-dev CUDA1,CUDA0", "device", "CUDA1,CUDA0"),
        ("--no-host", "no_host", True),
        ("--spec-type draft-mtp --spec-draft-n-max 5", "tokens_ahead", 5),
        ("--spec-draft-n-max 5", "tokens_ahead", 0),
    ],
)
def test_where_things_lie_is_said_in_llama_server_s_words(words: str, field: str, value: object) -> None:
    assert getattr(launch_of(words), field) == value


def test_several_options_are_read_together() -> None:
    assert launch_of("-c 4096 -np 2 -sm none -mg 1 -ngl 20 -ncmoe 3 -nkvo") == Launch(
        ctx_size=4096, parallel=2, split_mode="none", main_gpu=1, n_gpu_layers=20, n_cpu_moe=3, kv_offload=False
    )


@pytest.mark.parametrize(
    ("words", "types"),
    [
        ("", ("f16", "f16")),
        ("--cache-type q8_0", ("q8_0", "q8_0")),
        ("-ctk q8_0", ("q8_0", "f16")),
        ("-ctv q8_0", ("f16", "q8_0")),
        ("--cache-type q8_0 -ctk q4_0", ("q4_0", "q8_0")),
        ("-ctk q4_0 --cache-type q8_0", ("q4_0", "q8_0")),
        ("-ctv f16 --cache-type q8_0", ("q8_0", "f16")),
        ("--cache-type q8_0 -ctk q4_0 -ctv q5_1", ("q4_0", "q5_1")),
        ("--context 4096 --cache-type q8_0 -ctk f16", ("f16", "q8_0")),
    ],
)
def test_the_explicit_cache_type_wins_over_the_one_for_both(words: str, types: tuple[str, str]) -> None:
    launch = launch_of(words)
    assert (launch.cache_type_k, launch.cache_type_v) == types


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-ngl most", "neither a number nor auto nor all"),
        ("-ngl 1.5", "neither a number nor auto nor all"),
        ("-ngl --", "neither a number nor auto nor all"),
        ("-ngl --5", "neither a number nor auto nor all"),
        ("-ngl -", "neither a number nor auto nor all"),
        ("-ts ''", "not a list of shares"),
        ("-ts 3,,1", "not a list of shares"),
        ("-ts inf,1", "a share is 0 or more"),
        ("-ot ''", "is not PATTERN=BUFFER"),
        ("-ot a=", "is not PATTERN=BUFFER"),
        ("-ot a=CPU,b", "has 'b', which is not PATTERN=BUFFER"),
    ],
)
def test_a_value_that_makes_no_sense_is_one_sentence(words: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        launch_of(words)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ("--no-mmap", "none"),
        ("--mmap", "mmap"),
        ("--mlock", "mmap+mlock"),
        ("--no-mmap --mlock", "mlock"),
        ("--no-mmap --load-mode dio", "dio"),
    ],
)
def test_switches_of_builds_before_the_load_mode_count(words: str, mode: str) -> None:
    assert launch_of(words).load_mode == mode
