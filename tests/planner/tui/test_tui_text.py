"""Values as words."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from stand_ins import DAMAGED, ENGINE, FILES, GEMMA3, MACHINE, file_of, quick_measurement

from planner import Hardware
from planner.errors import DoesNotFitError, EngineError
from planner.fit import Cell
from planner.grids import plan_grid
from planner.measure import Progress
from planner.reconcile.reconciliation import Row
from planner.reconcile.record import Record
from planner.tui import run_text, text
from planner.tui.choices import ghost_choices
from planner.units import GIB, MIB, short_bytes, signed_mib

NARROW_BREAKDOWN = 36
"""Columns of the breakdown at 80."""


def a_cell(index: int = 0, hardware: Hardware = MACHINE, model: int = 1) -> Cell:
    opened = FILES[model].model
    assert opened is not None
    return plan_grid(opened, hardware, None, Record(Path("/nowhere"))).cells[index]


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0M"),
        (271 * MIB, "271M"),
        (999 * MIB, "999M"),
        (1000 * MIB, "1.0G"),
        (GIB, "1.0G"),
        (int(9.94 * GIB), "9.9G"),
        (int(9.96 * GIB), "10G"),
        (999 * GIB, "999G"),
        (1000 * GIB, "1.0T"),
        (5000 * GIB, "4.9T"),
    ],
)
def test_compact_takes_four_characters(size: int, words: str) -> None:
    assert short_bytes(size) == words
    assert len(words) <= 4


def test_a_machine_that_tells_nothing_is_told_so() -> None:
    pool = replace(MACHINE.host, total_bytes=None, usable_bytes=None)
    line = text.machine_line(replace(MACHINE, pools=(pool,)))
    assert "unknown memory" in line and "an unknown part usable" in line


def test_without_an_engine_it_says_what_still_works() -> None:
    line = text.engine_line(None)
    assert "predicting works" in line and "--engine" in line
    assert len(line) <= 80 - 11


def test_names_lose_their_middle_never_their_ends() -> None:
    assert text.shorten("Qwen3-30B-A3B-Instruct-2507-Q4_K_M.gguf", 22) == "Qwen3-30B-…Q4_K_M.gguf"
    assert len(text.shorten("x" * 50, 20)) == 20
    assert text.shorten("short", 20) == "short"


def test_models_are_one_line_each_at_80_columns() -> None:
    choices = (*FILES, *ghost_choices(), file_of(GEMMA3, "a" * 90 + ".gguf"))
    lines = [line for line, _style in text.choice_lines(choices, 80)]
    assert all(len(line) <= 78 for line in lines)
    assert "damaged" in lines[choices.index(DAMAGED)]
    assert lines[3].endswith("ghost")
    assert "gemma3" in lines[1] and "MiB" in lines[1]


def test_a_breakdown_names_every_allocation_with_its_reason() -> None:
    cell = a_cell()
    for wide in (False, True):
        table = text.breakdown(cell, wide=wide)
        assert len(table.lines) == len(cell.plan.allocations)
        for line, allocation in zip(table.lines, cell.plan.allocations, strict=True):
            assert allocation.reason in line.reason
        assert "needed" in table.total
    assert all(len(line.text) <= NARROW_BREAKDOWN for line in text.breakdown(cell, wide=False).lines)


def test_large_figures_still_fit_the_narrow_breakdown() -> None:
    plan = a_cell().plan
    allocations = tuple(replace(a, reserved_bytes=a.reserved_bytes + 90 * GIB) for a in plan.allocations)
    table = text.breakdown(replace(a_cell(), plan=replace(plan, allocations=allocations)), wide=False)
    assert all(len(line.text) <= NARROW_BREAKDOWN for line in table.lines)


def test_the_launch_is_told_in_both_vocabularies() -> None:
    line = text.launch_line(a_cell(1).plan)
    assert line == "2 people, each 2,048 tokens; llama-server: --ctx-size 4096 --parallel 2"
    assert text.launch_line(a_cell(0).plan).startswith("1 person, 2,048 tokens;")


def test_departures_from_the_defaults_are_told() -> None:
    assert any("--cache-ram" in note and "8192" in note for note in text.notes(a_cell().plan))
    assert text.notes(a_cell(hardware=Hardware.simulate(ram=64 * GIB), model=0).plan) == ()


def test_reasons_begin_with_the_verdict() -> None:
    sentences = text.reasons(a_cell(), "kv: because")
    assert sentences[0][0].startswith("✓ fits: ")
    assert sentences[1][0] == "kv: because"


def test_progress_moves_forward_and_fits_80_columns() -> None:
    stages = [
        Progress(phase="starting"),
        Progress(phase="loading"),
        Progress(phase="ready", resident_bytes=1023 * MIB),
        Progress(phase="everyone", done=0, total=8, resident_bytes=1023 * MIB),
        Progress(phase="everyone", done=8, total=8, resident_bytes=1023 * MIB),
        Progress(phase="stopping", resident_bytes=1023 * MIB),
    ]
    title = run_text.running_title(a_cell(5))
    lines = [run_text.progress_line(stage, 3599.0, wide=False) for stage in stages]
    bars = [line.count("━") for line in lines]
    assert bars == sorted(bars) and bars[0] < bars[-1] < 12
    assert max(len(title) + 2 + len(line) for line in lines) <= 78


def test_a_run_shows_every_row_with_its_cause() -> None:
    model = FILES[1].model
    assert model is not None
    cell = a_cell(1)
    (run,) = quick_measurement(model, [cell.plan.launch], ENGINE, None).runs
    for wide in (False, True):
        table = run_text.run_table(cell, run, wide=wide)
        assert len(table.lines) == len(run.reserved) + 1
        assert "learned now" in table.lines[-1].reason
        assert "agree" in table.lines[0].reason
    assert all(len(line.text) <= NARROW_BREAKDOWN for line in run_text.run_table(cell, run, wide=False).lines)
    assert "2 at once" in run_text.speed_line(run)


def test_what_lay_on_an_accelerator_is_a_row_with_its_witness() -> None:
    model = FILES[1].model
    assert model is not None
    cell = a_cell(1)
    (run,) = quick_measurement(model, [cell.plan.launch], ENGINE, None).runs
    row = Row(
        component="resident on CUDA0",
        device="CUDA0",
        predicted_bytes=900 * MIB,
        measured_bytes=910 * MIB,
        cause="",
        witness="what the driver says that the process holds",
    )
    run = replace(run, on_devices=(row,))
    for wide, name in ((False, "all on CUDA0"), (True, "resident on CUDA0")):
        line = run_text.run_table(cell, run, wide=wide).lines[-1]
        assert line.text.startswith(name)
        assert line.reason == (
            "resident on CUDA0: the prediction and the driver agree (what the driver says that the process holds)"
        )


def test_a_difference_has_a_sign_unless_it_rounds_to_nothing() -> None:
    assert signed_mib(0) == signed_mib(-100) == signed_mib(100) == "0.00"
    assert signed_mib(MIB) == "+1.00"
    assert signed_mib(-MIB) == "-1.00"


def test_a_hint_that_does_not_help_in_the_app_is_left_out() -> None:
    assert "--force" not in text.sentence(DoesNotFitError("Nothing fits.", "Override with --force."))
    assert text.sentence(EngineError("It died.", "Take another.")) == "It died. Take another."


def test_a_command_over_several_lines_is_the_same_command() -> None:
    command = "/opt/llama-server --model /models/a-model.gguf --ctx-size 4096 --no-kv-unified --port 8080"
    for width in (20, 40, 200):
        assert shlex.split(text.continued(command, width).replace("\\\n", "")) == shlex.split(command)
    assert text.continued("/opt/llama-server --model '/my models/a.gguf'", 20).count("\n") == 0


def test_a_launch_that_keeps_nothing_says_so_and_names_no_limit() -> None:
    plan = a_cell().plan
    kept = replace(plan, launch=replace(plan.launch, cache_ram=0, ctx_checkpoints=0))
    assert text.notes(kept) == ("Nothing is kept of a conversation that has ended.",)
