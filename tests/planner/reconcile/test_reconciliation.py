"""Prediction against measurement: what differs, and the cause that is given for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from planner import Hardware, Launch, MemoryPlan, Model, predict
from planner.engine.dry_figures import DryFigure, DryRun
from planner.engine.log import Buffer, EngineLog
from planner.measure import Measurement
from planner.memory import Component, Learned, LearnedSize
from planner.model.gguf import GgufHeader
from planner.reconcile.causes import MOVED
from planner.reconcile.reconciliation import Row, reconcile
from planner.units import MIB, format_bytes

Measure = Callable[..., Measurement]


def without(log: EngineLog, kind: str, device: str | None = None) -> EngineLog:
    """The log without its lines of that kind."""
    kept = [b for b in log.buffers if b.kind != kind or device not in (None, b.device)]
    return replace(log, buffers=tuple(kept))


def with_more(log: EngineLog, kind: str, extra_bytes: int) -> EngineLog:
    """The log with a further buffer of that kind."""
    return replace(log, buffers=(*log.buffers, Buffer(kind=kind, device="CPU", size_bytes=extra_bytes)))  # type: ignore[arg-type]


def overhead(size_bytes: int | None) -> Learned:
    """What a run on the processor alone taught."""
    assert size_bytes is not None
    return Learned(overhead={(): LearnedSize(size_bytes)})


def rows_of(plan: MemoryPlan, measurement: Measurement) -> dict[str, Row]:
    return {row.component: row for row in reconcile(plan, measurement).reserved}


def test_a_plan_that_came_true_has_a_row_per_component_and_no_cause(plan: MemoryPlan, measured: Measure) -> None:
    reconciliation = reconcile(plan, measured(plan))
    assert [row.component for row in reconciliation.reserved] == [
        "weights (CPU_Mapped)",
        "weights (CPU_REPACK)",
        "kv",
        "compute",
        "output",
    ]
    assert [(row.cause, row.delta_bytes) for row in reconciliation.reserved] == [("", 0)] * 5
    assert (reconciliation.resident.cause, reconciliation.resident.delta_bytes) == ("", 0)


def test_two_caches_are_one_row(plan: MemoryPlan, measured: Measure) -> None:
    assert rows_of(plan, measured(plan))["kv"].predicted_bytes == plan.bytes(component="kv")


def test_with_several_devices_each_has_rows_of_its_own(gemma: Model, measured: Measure) -> None:
    machine = Hardware.simulate(ram=16 << 30, vram=[8 << 30])
    plan = predict(gemma, replace(Launch.for_users(2, 2048), n_gpu_layers=10), machine, prompt_tokens=600)
    reconciliation = reconcile(plan, measured(plan))
    assert [row.component for row in reconciliation.reserved] == [
        "weights (CUDA0)",
        "weights (CPU_Mapped)",
        "kv on CUDA0",
        "kv on CPU",
        "compute on CUDA0",
        "compute on CPU",
        "output on CPU",
    ]
    assert {(row.cause, row.delta_bytes) for row in reconciliation.reserved} == {("", 0)}
    # A process holds nothing of a card's memory.
    assert reconciliation.resident.predicted_bytes == plan.resident_bytes(device="CPU") < plan.resident_bytes()


def test_a_buffer_that_lies_elsewhere_than_predicted_was_moved(gemma: Model, measured: Measure) -> None:
    machine = Hardware.simulate(ram=16 << 30, vram=[8 << 30])
    plan = predict(gemma, Launch.for_users(2, 2048), machine, prompt_tokens=600)
    log = measured(plan).log
    moved = tuple(replace(buffer, device="CPU") if buffer.kind == "kv" else buffer for buffer in log.buffers)
    rows = rows_of(plan, measured(plan, log=replace(log, buffers=moved)))
    assert (rows["kv on CUDA0"].measured_bytes, rows["kv on CPU"].predicted_bytes) == (0, 0)
    # What the rules of an untried back end cover is an estimate; that it is not there at all is none.
    assert rows["kv on CUDA0"].cause == rows["kv on CPU"].cause == MOVED
    lost = tuple(b for b in moved if b.kind != "kv") + tuple(b for b in moved if b.kind == "kv")[:1]
    rows = rows_of(plan, measured(plan, log=replace(log, buffers=lost)))
    assert rows["kv on CUDA0"].is_unexplained
    assert rows["kv on CPU"].is_unexplained


def test_a_state_has_a_row(measured: Measure) -> None:
    keys = {
        "block_count": 2,
        "embedding_length": 256,
        "context_length": 256,
        "ssm.inner_size": 512,
        "ssm.state_size": 16,
        "ssm.conv_kernel": 4,
        "vocab_size": 1000,
    }
    metadata = {"general.architecture": "mamba", **{f"mamba.{key}": value for key, value in keys.items()}}
    header = GgufHeader(version=3, metadata=metadata, tensors=(), alignment=32, data_offset=0)
    model = Model(path=Path("mamba.gguf"), header=header)
    plan = predict(model, Launch.for_users(2, 2048), Hardware.simulate(ram=16 << 30), prompt_tokens=600)
    assert plan.bytes(component="state") > 0
    rows = rows_of(plan, measured(plan))
    assert list(rows) == ["state", "compute", "output"]
    assert (rows["state"].predicted_bytes, rows["state"].cause) == (plan.bytes(component="state"), "")


@pytest.mark.parametrize("kind", ["kv", "output"])
def test_an_exact_figure_that_differs_is_unexplained(plan: MemoryPlan, measured: Measure, kind: str) -> None:
    log = with_more(measured(plan).log, kind, MIB)
    row = rows_of(plan, measured(plan, log=log))[kind]
    assert row.cause == "unexplained: 1.0 MiB more than predicted"
    assert row.delta_bytes == pytest.approx(MIB, abs=MIB // 50)


def test_a_compute_buffer_within_its_range_is_called_so(plan: MemoryPlan, measured: Measure) -> None:
    extra = plan.bytes(component="compute") // 50
    row = rows_of(plan, measured(plan, log=with_more(measured(plan).log, "compute", extra)))["compute"]
    assert row.cause.startswith("within the range of the estimate (")
    assert row.delta_bytes == pytest.approx(extra, abs=MIB // 50)


def test_a_compute_buffer_out_of_its_range_is_unexplained(plan: MemoryPlan, measured: Measure) -> None:
    extra = plan.bytes(component="compute") // 10
    row = rows_of(plan, measured(plan, log=with_more(measured(plan).log, "compute", extra)))["compute"]
    assert row.is_unexplained


@pytest.mark.parametrize("kind", ["kv", "compute", "output"])
def test_a_line_that_is_missing_is_not_a_zero(plan: MemoryPlan, measured: Measure, kind: str) -> None:
    row = rows_of(plan, measured(plan, log=without(measured(plan).log, kind)))[kind]
    assert (row.measured_bytes, row.delta_bytes) == (None, None)
    assert row.cause == "this engine's log does not say"


def test_a_log_without_any_buffer_explains_nothing_and_accuses_nobody(plan: MemoryPlan, measured: Measure) -> None:
    rows = reconcile(plan, measured(plan, log=EngineLog())).reserved
    assert {row.cause for row in rows} == {"this engine's log does not say"}


def test_an_engine_that_rearranges_nothing_is_told_by_what_it_was_built_for(
    plan: MemoryPlan, measured: Measure
) -> None:
    log = replace(without(measured(plan).log, "model", "CPU_REPACK"), cpu_features=frozenset({"SSE3", "AVX"}))
    row = rows_of(plan, measured(plan, log=log))["weights (CPU_REPACK)"]
    assert row.measured_bytes == 0
    assert row.cause == "this engine rearranges other types than this processor could: it is built for AVX"
    silent = replace(log, cpu_features=frozenset())
    cause = rows_of(plan, measured(plan, log=silent))["weights (CPU_REPACK)"].cause
    assert cause == "this engine rearranges other types than this processor could"


def test_a_buffer_that_was_not_predicted_has_a_row_of_its_own(plan: MemoryPlan, measured: Measure) -> None:
    log = with_more(measured(plan).log, "model", 3 * MIB)
    row = rows_of(plan, measured(plan, log=log))["weights (CPU)"]
    assert (row.predicted_bytes, row.measured_bytes) == (0, 3 * MIB)
    assert row.cause == "unexplained: 3.0 MiB more than predicted"


# Resident memory -------------------------------------------------------------------------------------------


def test_the_overhead_is_what_is_left_when_all_else_is_taken_away(plan: MemoryPlan, measured: Measure) -> None:
    process = next(a for a in plan.allocations if a.buffer == "process")
    resident = plan.resident_bytes() + 50 * MIB
    reconciliation = reconcile(plan, measured(plan, resident_bytes=resident))
    assert reconciliation.learned_overhead_bytes == process.resident_bytes + 50 * MIB


def test_a_learned_overhead_makes_the_same_run_come_true(
    gemma: Model, hardware: Hardware, plan: MemoryPlan, measured: Measure
) -> None:
    resident = plan.resident_bytes() + 50 * MIB
    learned = reconcile(plan, measured(plan, resident_bytes=resident)).learned_overhead_bytes
    again = predict(gemma, plan.launch, hardware, prompt_tokens=600, learned=overhead(learned))
    assert again.resident_bytes() == resident


def test_less_than_nothing_teaches_nothing(plan: MemoryPlan, measured: Measure) -> None:
    assert reconcile(plan, measured(plan, resident_bytes=MIB)).learned_overhead_bytes is None


def test_the_first_run_puts_a_difference_down_to_the_estimate(plan: MemoryPlan, measured: Measure) -> None:
    row = reconcile(plan, measured(plan, resident_bytes=plan.resident_bytes() + 50 * MIB)).resident
    assert row.delta_bytes == 50 * MIB
    assert row.cause.startswith("program and vocabulary hold ")
    assert row.cause.endswith(": learned now")


def test_later_runs_have_no_such_excuse(gemma: Model, hardware: Hardware, measured: Measure) -> None:
    plan = predict(gemma, Launch.for_users(2, 2048), hardware, learned=overhead(60 * MIB), prompt_tokens=600)
    late = reconcile(plan, measured(plan, resident_bytes=plan.resident_bytes() + 50 * MIB)).resident
    assert late.cause == "unexplained: 50.0 MiB more than predicted"
    assert reconcile(plan, measured(plan, resident_bytes=plan.resident_bytes() + MIB)).resident.cause == ""


def of_short_prompts(measurement: Measurement, *, users: int = 4, tokens: int = 200, **changes: str) -> Measurement:
    """The run with people whose prompts do not fill a ubatch."""
    return replace(measurement, everyone=replace(measurement.everyone, users=users, prompt_tokens=tokens), **changes)


def short_cause(plan: MemoryPlan, measured: Measure, more_bytes: int, **changes: object) -> tuple[str, int | None]:
    """Why a run held so much more than predicted, and what it taught."""
    measurement = measured(plan, resident_bytes=plan.resident_bytes() + more_bytes)
    run = reconcile(plan, of_short_prompts(measurement, **changes))  # type: ignore[arg-type]
    return run.resident.cause, run.learned_overhead_bytes


def test_how_prompts_met_explains_no_more_than_the_compute_buffer_in_question(
    gemma: Model, hardware: Hardware, measured: Measure
) -> None:
    launch = replace(Launch.for_users(4, 2048), ubatch_size=2048)
    plan = predict(gemma, launch, hardware, prompt_tokens=1000)
    process = next(a for a in plan.allocations if a.buffer == "process").resident_bytes
    compute = next(a for a in plan.allocations if a.component == "compute").resident_bytes
    less = compute * (2048 - 1000) // 2048  # together they fill a ubatch, apart they have 1000 tokens of it
    assert 20 * MIB < less < 50 * MIB
    # What the program holds is an estimate: within this it may be either, and beyond it is the estimate.
    cause, learned = short_cause(plan, measured, -less, tokens=1000)
    assert cause == (
        "prompts shorter than a ubatch are computed together or apart, as chance will have it "
        f"(-{format_bytes(less)} at most), or program and vocabulary hold less than was estimated"
    )
    assert learned is None
    for more in (68 * MIB, -60 * MIB):
        cause, learned = short_cause(plan, measured, more, tokens=1000)
        assert cause == (
            f"program and vocabulary hold {(process + more) / MIB:.1f} to {(process + more + less) / MIB:.1f} MiB, not "
            f"the estimated {process / MIB:.1f}: how prompts shorter than a ubatch met leaves open how much"
        )
        assert learned is None
    # Where it was measured, nothing but chance is left, and then nothing.
    known = predict(gemma, plan.launch, hardware, prompt_tokens=1000, learned=overhead(process))
    chance = "prompts shorter than a ubatch are computed together or apart, as chance will have it "
    assert short_cause(known, measured, -less, tokens=1000)[0] == f"{chance}(-{format_bytes(less)} at most)"
    assert short_cause(known, measured, -less - 30 * MIB, tokens=1000)[0] == (
        f"{chance}(-{format_bytes(less)} at most); unexplained: 30.0 MiB less than predicted"
    )
    assert short_cause(known, measured, 30 * MIB, tokens=1000)[0] == "unexplained: 30.0 MiB more than predicted"


@pytest.mark.parametrize(
    "changes",
    [{"engine_build": "llama-cpp-python 0.3.36"}, {"users": 1}, {"tokens": 512}],
    ids=["the library", "one person", "whole ubatches"],
)
def test_where_nothing_depends_on_how_prompts_met_the_overhead_is_learned(
    plan: MemoryPlan, measured: Measure, changes: dict[str, object]
) -> None:
    process = next(a for a in plan.allocations if a.buffer == "process").resident_bytes
    for more in (68 * MIB, -30 * MIB):
        cause, learned = short_cause(plan, measured, more, **changes)
        assert learned == process + more
        assert cause == (
            f"program and vocabulary hold {learned / MIB:.1f} MiB, not the estimated {process / MIB:.1f}: learned now"
        )


def test_where_little_depends_on_how_prompts_met_the_middle_is_learned(
    gemma: Model, hardware: Hardware, measured: Measure
) -> None:
    plan = predict(gemma, Launch.for_users(4, 512), hardware, prompt_tokens=200)
    process = next(a for a in plan.allocations if a.buffer == "process").resident_bytes
    compute = next(a for a in plan.allocations if a.component == "compute").resident_bytes
    less = compute * (512 - 200) // 512
    _, learned = short_cause(plan, measured, 68 * MIB)
    assert learned == process + 68 * MIB + less // 2
    for more in (0, -less // 2, -less):
        assert short_cause(plan, measured, more)[1] == process  # which these runs bear out
    again = predict(gemma, plan.launch, hardware, prompt_tokens=200, learned=overhead(learned))
    assert short_cause(again, measured, 0)[0] == short_cause(again, measured, -5 * MIB)[0] == ""


def test_a_system_that_does_not_tell_is_not_held_against_the_plan(plan: MemoryPlan, measured: Measure) -> None:
    reconciliation = reconcile(plan, measured(plan, resident_bytes=None))
    assert reconciliation.resident.cause == "this system does not say what a process holds"
    assert reconciliation.resident.delta_bytes is None
    assert reconciliation.learned_overhead_bytes is None


def test_what_llama_cpp_said_before_stands_between_prediction_and_measurement(
    plan: MemoryPlan, measured: Measure
) -> None:
    def said(*components: Component) -> DryFigure:
        return DryFigure(device="CPU", components=components, size_bytes=MIB, low_bytes=MIB, high_bytes=2 * MIB - 1)

    told = DryRun(way="llama-server", build="abc1234", figures=(said("kv", "state"), said("compute")))
    rows = {row.component: row.dry_run_bytes for row in reconcile(plan, measured(plan), told).reserved}
    assert (rows["kv"], rows["compute"], rows["output"]) == (MIB, MIB, None)


def test_one_sum_for_two_kinds_that_are_both_there_is_told_of_neither(plan: MemoryPlan, measured: Measure) -> None:
    figure = DryFigure(device="CPU", components=("kv", "compute"), size_bytes=MIB, low_bytes=MIB, high_bytes=MIB)
    told = DryRun(way="llama-server", build="abc1234", figures=(figure,))
    assert {row.dry_run_bytes for row in reconcile(plan, measured(plan), told).reserved} == {None}
