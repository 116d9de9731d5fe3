"""Finding a llama-server: the order, and what is said of those that do not run."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import psutil
import pytest
from fake_engines import MISSING_LIBRARY, VERSION_LINE, write_engine, write_script

from planner.engine import find
from planner.engine.find import (
    ENGINE_VARIABLE,
    Engine,
    embedded_path,
    find_engine,
    identify,
    parse_devices,
    parse_flags,
    parse_variables,
)
from planner.errors import EngineError


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    return write_engine(tmp_path / "llama-server")


# Order -----------------------------------------------------------------------------------------------------


def test_the_option_comes_before_everything_else(fake: Path, tmp_path: Path) -> None:
    engine = find_engine(fake, {ENGINE_VARIABLE: str(tmp_path / "another")}, path=str(tmp_path))
    assert (engine.path, engine.source) == (fake, "option")


def test_the_environment_comes_before_the_path(fake: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_engine(elsewhere / "llama-server")
    engine = find_engine(None, {ENGINE_VARIABLE: str(fake)}, path=str(elsewhere))
    assert (engine.path, engine.source) == (fake, "environment")


def test_the_path_comes_before_the_embedded_one(fake: Path, tmp_path: Path) -> None:
    engine = find_engine(None, {}, path=str(tmp_path))
    assert (engine.path, engine.source) == (fake, "path")


def test_without_any_other_the_embedded_one_is_used() -> None:
    engine = find_engine(None, {}, path="")
    assert (engine.path, engine.source) == (embedded_path(), "embedded")


def test_an_empty_variable_names_nothing(tmp_path: Path) -> None:
    assert find_engine(None, {ENGINE_VARIABLE: ""}, path="").source == "embedded"


def test_a_broken_one_on_the_path_is_passed_over(tmp_path: Path) -> None:
    write_script(tmp_path / "llama-server", "exit 1")
    assert find_engine(None, {}, path=str(tmp_path)).source == "embedded"


@pytest.mark.parametrize("named_by", ["option", "environment"])
def test_a_broken_one_that_was_named_is_an_error(tmp_path: Path, named_by: str) -> None:
    broken = write_script(tmp_path / "mine", "echo 'error: no such thing' >&2; exit 3")
    option = broken if named_by == "option" else None
    environment = {ENGINE_VARIABLE: str(broken)} if named_by == "environment" else {}
    with pytest.raises(EngineError, match=r"exit code 3\. It said: \"error: no such thing\""):
        find_engine(option, environment)


def test_a_broken_one_on_the_path_is_blamed_when_nothing_else_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "EMBEDDED_PACKAGE", "no_such_package_anywhere")
    write_script(tmp_path / "llama-server", "exit 9")
    with pytest.raises(EngineError, match="exit code 9"):
        find_engine(None, {}, path=str(tmp_path))


def test_none_at_all_is_an_error_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "EMBEDDED_PACKAGE", "no_such_package_anywhere")
    with pytest.raises(EngineError, match="No llama-server is found") as error:
        find_engine(None, {}, path="")
    assert "--engine PATH" in error.value.hint


def test_a_home_in_the_name_is_expanded(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(fake.parent))
    assert find_engine(None, {ENGINE_VARIABLE: "~/llama-server"}).path == fake


def test_a_relative_name_is_a_file_here_and_not_on_the_path(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert find_engine(Path("./llama-server")).path == fake


# Identification --------------------------------------------------------------------------------------------


def test_the_real_engine_says_its_version_and_commit(engine: Engine) -> None:
    assert engine.build in engine.version
    assert len(engine.build) >= 7
    assert engine.path.is_absolute()


def test_an_engine_is_known_by_its_version_where_it_names_no_commit(tmp_path: Path) -> None:
    engine = identify(write_engine(tmp_path / "s", version="echo 'version: 0 (unknown)'"), "option")
    assert engine.build == "0 (unknown)"


def test_an_engine_without_a_version_line_is_still_an_engine(tmp_path: Path) -> None:
    assert identify(write_engine(tmp_path / "s", version="true"), "option").version == "unknown version"


def test_the_short_commit_of_an_upstream_build_is_found(fake: Path) -> None:
    engine = identify(fake, "option")
    assert (engine.version, engine.build) == (VERSION_LINE.removeprefix("version: "), "0abc123")


def test_a_path_that_leads_nowhere(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="There is no llama-server at"):
        identify(tmp_path / "nowhere", "option")


def test_a_folder_is_no_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="There is no llama-server at"):
        identify(tmp_path, "option")


def test_a_file_that_is_not_executable(tmp_path: Path) -> None:
    file = tmp_path / "llama-server"
    file.write_text("#!/bin/sh\n")
    with pytest.raises(EngineError, match="cannot be started: Permission denied"):
        identify(file, "option")


def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    file = tmp_path / "llama-server"
    file.write_bytes(b"\x00\x01\x02 not a program")
    file.chmod(0o755)
    with pytest.raises(EngineError, match="cannot be started: Exec format error"):
        identify(file, "option")


def test_a_program_that_is_no_llama_server(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is not a llama-server: its --help names no --ctx-size"):
        identify(write_script(tmp_path / "true", "exit 0"), "option")


def test_an_engine_for_a_newer_processor(tmp_path: Path) -> None:
    script = write_script(tmp_path / "llama-server", "kill -ILL $$")
    with pytest.raises(EngineError, match="died of SIGILL: it was built for a newer processor than this one"):
        identify(script, "option")


def test_an_engine_whose_library_is_missing(tmp_path: Path) -> None:
    script = write_script(tmp_path / "llama-server", f"echo '{MISSING_LIBRARY}' >&2; exit 127")
    with pytest.raises(EngineError, match=r"exit code 127: a library that it needs is missing\. .*libcudart\.so\.12"):
        identify(script, "option")


def test_an_engine_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_PROBE_TIMEOUT_S", 0.3)
    with pytest.raises(EngineError, match=r"--version did not answer within 0\.3 seconds"):
        identify(write_engine(tmp_path / "s", version="exec sleep 600"), "option")


def test_a_hanging_engine_is_given_up_also_when_its_child_keeps_the_output_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "_PROBE_TIMEOUT_S", 0.3)
    with pytest.raises(EngineError, match="did not answer"):
        identify(write_engine(tmp_path / "s", version="sleep 600"), "option")


def test_nothing_is_left_of_a_script_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_PROBE_TIMEOUT_S", 1)
    with pytest.raises(EngineError, match="did not answer"):
        identify(write_engine(tmp_path / "s", version=f"sleep 600 & echo $! > {tmp_path}/pid; wait"), "option")
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_program_that_goes_on_printing_is_not_read_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_MOST_CHARACTERS", 1000)
    with pytest.raises(EngineError, match="--version"):
        identify(write_engine(tmp_path / "s", version="exec yes"), "option")


def test_output_that_is_no_utf8_does_not_disturb(tmp_path: Path) -> None:
    script = write_engine(tmp_path / "s", version=rf"printf '\377\376 {VERSION_LINE}\n'")
    assert identify(script, "option").build == "0abc123"


def test_settings_in_the_environment_do_not_disturb(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A wrong LLAMA_ARG_ variable ends every call of llama-server, even its --help."""
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "abc")
    plain = subprocess.run([str(engine.path), "--help"], capture_output=True, check=False)
    assert plain.returncode != 0
    assert identify(engine.path, "embedded") == engine


# Flags -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flag",
    "-c --ctx-size -np --parallel -kvu --kv-unified -no-kvu --no-kv-unified -ctk --cache-type-k -fa --flash-attn "
    "-lm --load-mode --no-repack --ctx-checkpoints --cache-ram --device --list-devices --log-jsonl -h".split(),
)
def test_the_flags_of_the_real_engine_are_read(engine: Engine, flag: str) -> None:
    assert flag in engine.flags


@pytest.mark.parametrize("flag", ["--draft-max", "--draft", "--draft-min", "--spec-ngram-size-n"])
def test_flags_that_were_removed_are_not_offered(engine: Engine, flag: str) -> None:
    assert flag not in engine.flags


def test_no_name_is_cut_off(engine: Engine) -> None:
    """Names that only begin another one must be flags of their own, as `--kv-unified` is."""
    for cut_off in ("--no-kv-un", "--ctx", "--no", "--cache-type", "--no-kv", "--flash", "--"):
        assert cut_off not in engine.flags
    assert all(not flag.endswith("-") for flag in engine.flags)


def test_flags_that_only_an_explanation_mentions_are_not_read() -> None:
    text = "--alpha N      works like --beta (see -g)\n        unless --gamma is given\n"
    assert parse_flags(text) == {"--alpha"}


def test_names_that_are_set_apart_by_several_blanks_are_all_read() -> None:
    assert parse_flags("-a,    --alpha,  --aleph N   text\n") == {"-a", "--alpha", "--aleph"}


def test_the_variables_that_set_options_are_read() -> None:
    text = (Path(__file__).parents[2] / "data" / "help" / "b9444.txt").read_text(encoding="utf-8")
    variables = parse_variables(text)
    assert variables["LLAMA_ARG_CTX_SIZE"] == "--ctx-size"
    assert variables["LLAMA_ARG_KV_UNIFIED"] == "--kv-unified"
    assert variables["LLAMA_ARG_MMAP"] == "--mmap"
    assert "LLAMA_ARG_CACHE_TYPE_K" in variables


# Devices ---------------------------------------------------------------------------------------------------


def test_devices_are_read_with_brackets_in_their_names() -> None:
    text = """\
load_backend: loaded CUDA backend from /app/libggml-cuda.so
Available devices:
  CUDA0: NVIDIA GeForce RTX 3090 (24576 MiB, 23306 MiB free)
  MTL0: Apple M1 Max (26000 MiB, 25999 MiB free)
  Vulkan1: Quadro T1000 (4342 MiB, 3815 MiB free)
  Vulkan0: AMD Radeon 780M Graphics (RADV PHOENIX) (15838 MiB, 15012 MiB free)
  RPC0: 127.0.0.1:50052 (24105 MiB, 24105 MiB free)
"""
    assert {device.name: device.description for device in parse_devices(text)} == {
        "CUDA0": "NVIDIA GeForce RTX 3090",
        "MTL0": "Apple M1 Max",
        "Vulkan1": "Quadro T1000",
        "Vulkan0": "AMD Radeon 780M Graphics (RADV PHOENIX)",
        "RPC0": "127.0.0.1:50052",
    }


@pytest.mark.parametrize("text", ["", "Available devices:\n", "Available devices:\n  (none)\n"])
def test_a_machine_without_accelerators_has_no_device(text: str) -> None:
    assert parse_devices(text) == ()


def test_the_real_engine_lists_no_processor(engine: Engine) -> None:
    assert "CPU" not in {device.name for device in engine.devices}
