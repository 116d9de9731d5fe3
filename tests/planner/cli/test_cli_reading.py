"""`planner`, `planner plan` and `planner inspect`: what they print, and how they fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_engines import write_engine
from planner_process import Planner, planner_command
from projector_files import Shape, write_projector
from samples import assert_sizes_are_named, gguf

Fails = Callable[..., str]

HEAVY_MODULES = (
    "textual huggingface_hub llama_cpp pynvml numpy gguf rich yaml asyncio http.client psutil platformdirs "
    "subprocess msgspec"
).split()


# plan ------------------------------------------------------------------------------------------------------


def test_a_plan_names_every_component_and_a_verdict(planner: Planner, gemma_path: Path) -> None:
    result = planner("plan", gemma_path, "--context", 8192, "--users", 2)
    assert (result.returncode, result.stderr) == (0, "")
    for word in ("weights", "CPU_Mapped", "kv", "compute", "output", "overhead", "checkpoints", "prompt_cache"):
        assert word in result.stdout
    assert "2 people, 8,192 tokens each (llama-server: 16,384 in total), cache f16/f16" in result.stdout
    assert "Verdict   fits" in result.stdout


def test_a_plan_as_json(planner: Planner, gemma_path: Path) -> None:
    result = planner("plan", gemma_path, "--context", 8192, "--users", 2, "--ram", "16G", "--json")
    document = json.loads(result.stdout)
    assert (result.returncode, result.stderr) == (0, "")
    assert document["schema_version"] == 1
    assert document["verdict"] == "fits"
    assert document["launch"]["ctx_size"] == 16384
    assert document["context"]["n_ctx_seq"] == 8192
    assert document["hardware"]["pools"][0]["usable_bytes"] == 16 << 30
    allocations = document["devices"][0]["allocations"]
    assert sum(a["reserved_bytes"] for a in allocations) == document["reserved_bytes"]
    assert all(a["reason"] and a["certainty"] for a in allocations)
    assert_sizes_are_named(document)


def test_a_machine_that_is_too_small_is_exit_code_3(planner: Planner, gemma_path: Path) -> None:
    result = planner("plan", gemma_path, "--context", 8192, "--ram", "100M")
    assert (result.returncode, result.stderr) == (3, "")
    assert "Verdict   too_big" in result.stdout
    assert "more host memory is needed than is usable" in result.stdout


def test_a_launch_that_llama_cpp_refuses_is_exit_code_3(planner: Planner, gemma_path: Path) -> None:
    result = planner("plan", gemma_path, "-c", 4096, "-ctv", "q8_0", "-fa", "off")
    assert result.returncode == 3
    assert "refuses a q8_0 V cache without flash attention" in result.stdout


def test_a_command_that_a_person_runs_already_can_be_pasted(planner: Planner, gemma_path: Path) -> None:
    pasted = "-c 32768 -np 4 -ctk q8_0 -ctv q8_0 -ub 512 -fa on -b 1024 -cram 1024 -ctxcp 8 -no-kvu -lm none"
    result = planner("plan", gemma_path, *pasted.split(), "-nr", "--json")
    launch = json.loads(result.stdout)["launch"]
    assert result.returncode == 0
    assert launch == launch | {
        "ctx_size": 32768,
        "parallel": 4,
        "kv_unified": False,
        "cache_type_k": "q8_0",
        "cache_type_v": "q8_0",
        "flash_attn": "on",
        "batch_size": 1024,
        "ubatch_size": 512,
        "cache_ram": 1024,
        "ctx_checkpoints": 8,
        "load_mode": "none",
        "repack": False,
    }


@pytest.mark.parametrize(
    ("words", "parallel", "unified", "n_ctx"),
    [
        ("", 1, False, 32768),
        ("-c 8192", None, None, 8192),
        ("-c 8192 -np -1", None, None, 8192),
        ("-np 2", 2, None, 65536),
        ("-c 8192 -np 2 -kvu", 2, True, 8192),
        ("--context 4096", 1, False, 4096),
        ("--context 4096 --users 3", 3, False, 12288),
    ],
)
def test_both_vocabularies_mean_what_they_say(
    planner: Planner, gemma_path: Path, words: str, parallel: int | None, unified: bool | None, n_ctx: int
) -> None:
    document = json.loads(planner("plan", gemma_path, *words.split(), "--json").stdout)
    assert document["launch"]["parallel"] == parallel
    assert document["launch"]["kv_unified"] == unified
    assert document["context"]["n_ctx"] == n_ctx


@pytest.mark.parametrize("words", ["--context 4096 -np 2", "--users 2 -c 8192", "--context 4096 --kv-unified"])
def test_the_two_vocabularies_are_never_mixed(fails: Fails, gemma_path: Path, words: str) -> None:
    sentence = fails(2, "plan", gemma_path, *words.split())
    assert "speak of each person" in sentence
    assert "use one or the other" in sentence


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--users 2", "how many tokens does each of them get"),
        ("-np 0", "parallel is 0, below the smallest possible 1"),
        ("--context 0", "--context"),
        ("--ram lots", "'lots' is not a size. Write it like 16G or 512M"),
        ("--ram 8G --vram 24G,lots", "'lots' is not a size. Write it like 16G or 512M"),
        ("--ram 8G --vram 24", "'24' would be 24 bytes. Did you mean 24G?"),
        ("--ram 8G --vram 24G,0M", "each of its cards needs VRAM"),
        ("-ngl most", "--n-gpu-layers is 'most', neither a number nor auto nor all"),
        ("-ts 3,one", "--tensor-split is '3,one', not a list of shares like 3,1"),
        ("-ts 3,-1", "--tensor-split is '3,-1', not a list of shares like 3,1"),
        ("-ts nan", "a share is 0 or more"),
        ("-ot ffn", "--override-tensor has 'ffn', which is not PATTERN=BUFFER"),
        ("-ot =CPU", "--override-tensor has '=CPU', which is not PATTERN=BUFFER"),
        ("-sm row", "'row' is not one of 'none', 'layer'"),
        ("-mg -1", "-mg"),
        ("-ncmoe some", "-ncmoe"),
        ("-ncffn -1", "-ncffn"),
        ("-ctk q3_0", "q3_0"),
        ("-fa", "-fa"),
        ("--no-such-option", "--no-such-option"),
    ],
)
def test_arguments_that_make_no_sense_are_exit_code_2(fails: Fails, gemma_path: Path, words: str, said: str) -> None:
    assert said in fails(2, "plan", gemma_path, *words.split())


def test_a_plan_for_cards_has_a_table_and_a_verdict_for_each_device(planner: Planner, gemma_path: Path) -> None:
    words = "--context 8192 --ram 16G --vram 24G,12G"
    result = planner("plan", gemma_path, *words.split())
    assert (result.returncode, result.stderr) == (0, "")
    headings = [line.split(":")[0] for line in result.stdout.splitlines() if line.startswith("━━")]
    assert headings == ["━━ CUDA0", "━━ CUDA1", "━━ CPU"]
    assert "usable CUDA1 memory" in result.stdout
    document = json.loads(planner("plan", gemma_path, *words.split(), "--json").stdout)
    assert [(device["name"], device["verdict"]) for device in document["devices"]] == [
        ("CUDA0", "fits"),
        ("CUDA1", "fits"),
        ("CPU", "fits"),
    ]
    assert [pool["usable_bytes"] >> 30 for pool in document["hardware"]["pools"]] == [24, 12, 16]


def test_a_card_that_is_too_small_is_exit_code_3(planner: Planner, gemma_path: Path) -> None:
    result = planner("plan", gemma_path, "--context", 8192, "--ram", "16G", "--vram", "300M", "-ngl", 99)
    assert result.returncode == 3
    assert "more CUDA0 memory is needed than is usable now" in result.stdout


def test_what_llama_cpp_would_not_place_is_exit_code_3(planner: Planner, gemma_path: Path) -> None:
    for words, said in (
        ("-dev CUDA7", "finds no device 'CUDA7' here: it has CUDA0"),
        ("-sm none -mg 3", "refuses --main-gpu 3"),
        ("-ot ffn=GPU", "knows no buffer type 'GPU' here"),
        ("-ot ffn(=CPU", "is no regular expression"),
    ):
        result = planner("plan", gemma_path, "--ram", "16G", "--vram", "8G", *words.split())
        assert (result.returncode, result.stderr) == (3, "")
        assert said in " ".join(result.stdout.split())


def test_options_before_the_command_are_sent_behind_it(fails: Fails, gemma_path: Path) -> None:
    assert "Put --json behind plan" in fails(2, "--json", "plan", gemma_path)
    assert "Put --context behind inspect" in fails(2, "--context", 5, "inspect", gemma_path)


def test_a_command_that_does_not_exist(fails: Fails) -> None:
    assert "No such command 'predict'" in fails(2, "predict")


def test_a_locale_without_our_letters_is_no_obstacle(planner: Planner, gemma_path: Path) -> None:
    result = planner("plan", gemma_path, env={"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"})
    assert (result.returncode, result.stderr) == (0, "")
    assert "Verdict   fits" in result.stdout


def test_an_architecture_that_is_not_known_has_exact_weights_and_no_verdict(planner: Planner, tmp_path: Path) -> None:
    file = tmp_path / "tomorrow.gguf"
    file.write_bytes(gguf(architecture="tomorrow") + bytes(64))
    result = planner("plan", file)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Verdict   unknown" in result.stdout
    said = " ".join(result.stdout.split())
    assert "The architecture 'tomorrow' is not known to this version: its weights are exact" in said
    assert "tomorrow.context_length" in said


# Files that are no models ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["plan", "inspect", "--measure"])
def test_a_file_that_is_not_there(fails: Fails, command: str) -> None:
    assert fails(1, command, "missing.gguf") == "There is no file missing.gguf. Check the path."


@pytest.mark.parametrize("command", ["plan", "inspect", "--measure"])
def test_a_file_that_is_no_gguf(fails: Fails, tmp_path: Path, command: str) -> None:
    (tmp_path / "model.gguf").write_bytes(b"PK\x03\x04" + bytes(500))
    assert "model.gguf is not a GGUF file (it starts with b'PK\\x03\\x04'" in fails(1, command, "model.gguf")


@pytest.mark.parametrize("command", ["plan", "--measure"])
def test_a_download_that_broke_off_names_both_sizes(
    fails: Fails, gemma_path: Path, tmp_path: Path, command: str
) -> None:
    size = gemma_path.stat().st_size
    with gemma_path.open("rb") as whole:
        (tmp_path / "half.gguf").write_bytes(whole.read(20_000_000))
    sentence = fails(1, command, "half.gguf")
    assert "half.gguf is cut off" in sentence
    assert "the file has 20,000,000" in sentence
    assert f"{size:,}" in sentence


def test_a_plan_counts_the_projector_for_images(
    planner: Planner, fails: Fails, smollm_path: Path, tmp_path: Path
) -> None:
    mmproj = write_projector(tmp_path / "mmproj.gguf", Shape())
    said = planner("plan", smollm_path, "--mmproj", mmproj, "-c", 512, "-np", 1, "--ram", "8G", "--cache-ram", 0)
    assert said.returncode == 0
    assert re.search(r"projector +mmproj +0\.50 +0\.50 +exact", said.stdout)
    assert re.search(r"projector +mmproj compute +0\.22 +0\.22 +estimated", said.stdout)
    assert "no projector" in fails(1, "plan", smollm_path, "--mmproj", smollm_path)
    assert "There is no file" in fails(1, "plan", smollm_path, "--mmproj", tmp_path / "none.gguf")


def test_the_header_of_a_download_that_broke_off_can_be_read(
    planner: Planner, gemma_path: Path, tmp_path: Path
) -> None:
    with gemma_path.open("rb") as whole:
        (tmp_path / "half.gguf").write_bytes(whole.read(20_000_000))
    assert planner("inspect", "half.gguf").returncode == 0
    assert planner("plan", "half.gguf", "--header-only").returncode == 0


@pytest.mark.parametrize("command", ["plan", "inspect", "--measure"])
def test_a_version_of_the_future(fails: Fails, tmp_path: Path, command: str) -> None:
    (tmp_path / "model.gguf").write_bytes(gguf(version=4) + bytes(64))
    assert "is GGUF version 4, newer than the versions that llama.cpp reads" in fails(1, command, "model.gguf")


def test_a_folder_without_a_model(fails: Fails, tmp_path: Path) -> None:
    assert fails(1, "plan", tmp_path) == f"The folder {tmp_path} holds no GGUF file. Name the .gguf file to open."


def test_a_folder_stands_for_the_one_model_in_it(planner: Planner, gemma_path: Path, tmp_path: Path) -> None:
    (tmp_path / "gemma").mkdir()
    (tmp_path / "gemma" / "model.gguf").symlink_to(gemma_path)
    result = planner("plan", "gemma", "--ram", "16G")
    assert (result.returncode, result.stderr) == (0, "")
    assert "gemma/model.gguf" in result.stdout


# inspect ---------------------------------------------------------------------------------------------------


def test_a_header_for_a_person(planner: Planner, gemma_path: Path) -> None:
    result = planner("inspect", gemma_path, "--tensors")
    assert (result.returncode, result.stderr) == (0, "")
    for word in ("gemma3", "262,144", "GQA groups", "Window", "512 tokens on 15 of 18 layers", "blk.17.ffn_up"):
        assert word in result.stdout


def test_a_header_as_json(planner: Planner, gemma_path: Path) -> None:
    result = planner("inspect", gemma_path, "--json")
    document = json.loads(result.stdout)
    assert (result.returncode, result.stderr) == (0, "")
    assert document["schema_version"] == 1
    assert document["hyperparameters"]["n_layer"] == 18
    assert document["metadata"]["tokenizer.ggml.tokens"] == {"length": 262144}
    assert sum(t["size_bytes"] for t in document["tensors"]) == document["model"]["tensor_bytes"]
    assert_sizes_are_named({key: value for key, value in document.items() if key != "metadata"})


# The report ------------------------------------------------------------------------------------------------


def test_without_a_terminal_planner_prints_a_report(planner: Planner, gemma_path: Path, own_home: Path) -> None:
    (own_home / "models").mkdir()
    (own_home / "models" / "gemma.gguf").symlink_to(gemma_path)
    (own_home / "models" / "broken.gguf").write_bytes(b"nothing")
    result = planner()
    assert (result.returncode, result.stderr) == (0, "")
    for word in (
        "Memory",
        "Processor",
        "Engine    llama-server",
        "gemma.gguf",
        "fits",
        "planner --measure [MODEL]",
    ):
        assert word in result.stdout
    assert "broken.gguf is not a GGUF file" in result.stdout


def test_the_report_as_json(planner: Planner) -> None:
    document = json.loads(planner("--json").stdout)
    assert document["schema_version"] == 1
    assert document["models"] == []


def test_the_report_does_without_an_engine_and_says_so(planner: Planner) -> None:
    result = planner(embedded=False, library=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Engine    none. No llama-server is found" in result.stdout


def test_the_report_names_the_engine_that_was_asked_for(planner: Planner, tmp_path: Path) -> None:
    write_engine(tmp_path / "mine")
    result = planner("--engine", "./mine")
    assert f"(option: {tmp_path}/mine)" in result.stdout


# Starting and ending ---------------------------------------------------------------------------------------


def test_planning_starts_without_the_heavy_libraries(gemma_path: Path) -> None:
    program = (
        "import sys\n"
        "from planner.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        f"    print([name for name in {HEAVY_MODULES!r} if name in sys.modules], file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", program, "plan", str(gemma_path), "--ram", "16G"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"


@pytest.mark.parametrize("words", ["plan {} --json", "inspect {} --tensors", "", "--help"])
def test_a_reader_who_has_had_enough_is_no_crash(gemma_path: Path, words: str) -> None:
    """As in `planner ... | head -1`: the pipe is closed before anything was written."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run(
            planner_command(*words.format(gemma_path).split()),
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert result.stderr == ""
    assert result.returncode in (0, 1)


def test_the_version_is_known(planner: Planner) -> None:
    assert planner("--version").stdout.startswith("planner, version ")
