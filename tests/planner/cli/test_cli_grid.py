"""`planner plan --grid`: tables of cells, by formula and in llama.cpp's own figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from planner_process import Planner
from samples import assert_sizes_are_named


def test_three_tables_by_formula(planner: Planner, smollm_path: Path) -> None:
    result = planner("plan", smollm_path, "--grid", "--ram", "400M")
    assert result.returncode == 0, result.stderr
    heads = [line.split()[0] for line in result.stdout.splitlines() if "8 people" in line]
    assert heads == ["f16", "q8_0", "q4_0"]
    assert "✗" in result.stdout and "✓" in result.stdout
    assert "by formula: 54 cells" in result.stdout


def test_a_cell_is_the_plan_of_its_launch(planner: Planner, smollm_path: Path) -> None:
    grid = json.loads(planner("plan", smollm_path, "--grid", "--json", "--ram", "8G").stdout)
    assert_sizes_are_named(grid)
    cell = next(c for c in grid["cells"] if (c["users"], c["ctx_per_user"], c["cache_type"]) == (2, 4096, "q8_0"))
    launch = ("--context", "4096", "--users", "2", "--cache-type", "q8_0", "--cache-ram", cell["launch"]["cache_ram"])
    plan = json.loads(planner("plan", smollm_path, *launch, "--json", "--ram", "8G").stdout)
    assert cell["source"] == "formula"
    assert cell["devices"] == plan["devices"]
    assert cell["verdict"] == plan["verdict"]


def test_other_options_count_in_every_cell(planner: Planner, smollm_path: Path) -> None:
    options = ("--cache-type", "q5_1", "-ub", "128", "-kvu")
    grid = json.loads(planner("plan", smollm_path, "--grid", *options, "--json").stdout)
    assert {cell["cache_type"] for cell in grid["cells"]} == {"q5_1"}
    assert {(cell["launch"]["ubatch_size"], cell["launch"]["kv_unified"]) for cell in grid["cells"]} == {(128, True)}


def test_nothing_fits(planner: Planner, smollm_path: Path) -> None:
    assert planner("plan", smollm_path, "--grid", "--ram", "50M").returncode == 3


@pytest.mark.engine
def test_llama_cpps_own_figures(planner: Planner, smollm_path: Path) -> None:
    result = planner("plan", smollm_path, "--grid", "--dry-run", "--json")
    assert result.returncode == 0, result.stderr
    sources = [cell["source"] for cell in json.loads(result.stdout)["cells"]]
    assert set(sources) == {"dry run", "interpolated"}
    assert sources.count("dry run") == 27
    text = planner("plan", smollm_path, "--grid", "--dry-run").stdout  # every answer is kept
    assert "≈" not in text
    assert "llama.cpp's own figures: 27 cells" in text


@pytest.mark.engine
def test_a_launch_that_kills_llama_cpp_costs_its_cell(planner: Planner, shared: Path) -> None:
    header = shared / "archs" / "kimi-linear-moe.gguf"
    result = planner("plan", header, "--header-only", "--grid", "--dry-run")
    assert result.returncode == 0
    assert "Not every launch could be asked about: llama-server died of SIGABRT" in result.stderr
    assert "≈" in result.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--users", "3"), "--users has no place in it"),
        (("-c", "4096"), "--ctx-size has no place in it"),
        (("-ctk", "q8_0"), "one type for keys and values"),
    ],
)
def test_what_a_grid_goes_over_itself(
    fails: Callable[..., str], smollm_path: Path, options: tuple[str, ...], words: str
) -> None:
    assert words in fails(2, "plan", smollm_path, "--grid", *options)
