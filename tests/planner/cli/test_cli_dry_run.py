"""`planner plan --dry-run`: llama.cpp's own figures beside the prediction, or a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_engines import write_engine
from planner_process import Planner
from samples import assert_sizes_are_named

from planner.engine.dry_run import library_is_here

OPTIONS = ("--context", "2048", "--users", "2")


def table_of(text: str) -> dict[str, list[str]]:
    """The comparison's rows by component."""
    lines = text[text.index("predicted") :].splitlines()[2:]
    return {line.split()[0]: line.split()[1:] for line in lines[: lines.index("")]}


@pytest.mark.engine
def test_the_servers_figures_stand_beside_the_prediction(planner: Planner, smollm_path: Path) -> None:
    result = planner("plan", smollm_path, *OPTIONS, "--dry-run")
    assert result.returncode == 0, result.stderr
    table = table_of(result.stdout)
    assert table["kv"] == ["CPU", "90.00", "90.00", "0.00"]
    assert table["compute"][3] == "0.00"
    assert table["output"][:2] == ["CPU", "0.38"]
    assert "llama-server 86a2835 answered; it allocated nothing." in result.stdout
    assert "dry run" in next(line for line in result.stdout.splitlines() if line.startswith("compute"))


@pytest.mark.engine
def test_the_document_has_them_too(planner: Planner, smollm_path: Path) -> None:
    result = planner("plan", smollm_path, *OPTIONS, "--dry-run", "--json")
    document = json.loads(result.stdout)
    assert_sizes_are_named(document)
    assert document["dry_run"]["way"] == "llama-server"
    rows = {row["components"][0]: row for row in document["dry_run"]["rows"]}
    assert rows["compute"]["delta_bytes"] == 0
    assert rows["output"]["figure"] is None
    without = json.loads(planner("plan", smollm_path, *OPTIONS, "--json").stdout)
    assert "dry_run" not in without


@pytest.mark.engine
def test_a_refusal_of_llama_cpp_ends_like_ours(planner: Planner, smollm_path: Path) -> None:
    result = planner("plan", smollm_path, *OPTIONS, "--dry-run", "-fa", "off", "--cache-type-v", "q8_0")
    assert result.returncode == 3
    assert "refuses this launch: llama_init_from_model: quantized V cache requires" in " ".join(result.stdout.split())


@pytest.mark.skipif(not library_is_here(), reason="llama-cpp-python is not installed")
def test_the_library_answers_where_there_is_no_server(planner: Planner, smollm_path: Path) -> None:
    result = planner("plan", smollm_path, *OPTIONS, "--dry-run", embedded=False)
    assert result.returncode == 0, result.stderr
    assert table_of(result.stdout)["kv"] == ["CPU", "90.00", "90.00", "0.00"]
    assert "llama-cpp-python 0" in result.stdout


def test_an_engine_that_dies_is_a_sentence(fails: Callable[..., str], smollm_path: Path, tmp_path: Path) -> None:
    engine = write_engine(tmp_path / "llama-server", serve="kill -ABRT $$")
    engine.write_text(engine.read_text().replace("--list-devices  ", "--fit [on|off]\n--list-devices  "))
    said = fails(1, "plan", smollm_path, *OPTIONS, "--dry-run", "--engine", engine)
    assert said.startswith("llama-server died of SIGABRT")


def test_an_engine_that_is_not_there_is_a_sentence(fails: Callable[..., str], smollm_path: Path) -> None:
    said = fails(1, "plan", smollm_path, "--dry-run", "--engine", "none")
    assert said.startswith("There is no llama-server at none")


@pytest.mark.parametrize("options", [("--engine", "x", "--vram", "8G"), ("--dry-run", "--vram", "8G")])
def test_options_that_contradict_it(fails: Callable[..., str], smollm_path: Path, options: tuple[str, ...]) -> None:
    assert "--vram describe" in fails(2, "plan", smollm_path, *options)
