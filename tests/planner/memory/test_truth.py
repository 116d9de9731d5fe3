"""Every figure of llama.cpp's that we have, exact: what `python -m benchmarks.accuracy` prints."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.accuracy_sources import (
    Case,
    architecture_cases,
    full_size_cases,
    log_cases,
    server_cases,
    unasserted_rows,
)
from planner import Model

SERVER_LAUNCHES = 74
"""Rows of tests/data/server_compute.csv."""


def assert_exact(cases: Iterable[Case], least: int) -> None:
    held = tuple(cases)
    assert len(held) >= least
    assert [str(case) for case in held if not case.exact] == []


def models(gemma: Model, smollm: Model) -> dict[str, Model]:
    return {model.path.stem: model for model in (gemma, smollm)}


def test_every_architecture_is_exact_in_cells_layers_keys_values_and_state(shared: Path) -> None:
    assert_exact(architecture_cases(shared / "archs"), 1019)


def test_every_full_size_model_is_exact_to_the_byte(shared: Path) -> None:
    assert_exact(full_size_cases(shared / "fullsize"), 184)


def test_every_public_log_is_exact_in_what_it_says(shared: Path) -> None:
    assert_exact(log_cases(shared / "evidence"), 51)


def test_no_public_log_is_left_out_without_a_reason(shared: Path) -> None:
    assert unasserted_rows(shared / "evidence") == []


def test_caches_and_output_are_what_a_llama_server_reserved(gemma: Model, smollm: Model) -> None:
    assert_exact(server_cases(models(gemma, smollm)), SERVER_LAUNCHES)
