"""A prediction beside llama.cpp's dry run: what agrees is left alone, what differs is llama.cpp's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner import Hardware, Launch, MemoryPlan, Model, Verdict, predict
from planner.engine.dry_figures import DryFigure, DryRun
from planner.memory import Component
from planner.reconcile.dry_comparison import DryComparison, compare
from planner.units import GIB, MIB

LAUNCH = Launch(ctx_size=8192, parallel=2, kv_unified=False)
MACHINE = Hardware.simulate(ram=8 * GIB)


@pytest.fixture
def plan(gemma: Model) -> MemoryPlan:
    """Gemma on a machine of 8 GiB."""
    return predict(gemma, LAUNCH, MACHINE)


def whole_mib(size_mib: int, *components: Component, device: str = "CPU") -> DryFigure:
    """A figure as a llama-server gives it."""
    low = size_mib * MIB
    return DryFigure(device=device, components=components, size_bytes=low, low_bytes=low, high_bytes=low + MIB - 1)


def held_against(model: Model, plan: MemoryPlan, *figures: DryFigure) -> DryComparison:
    return compare(model, plan, DryRun(way="llama-server", build="abc1234", figures=figures))


def floor_mib(plan: MemoryPlan, *components: Component) -> int:
    return sum(plan.bytes(component=component) for component in components) // MIB


def test_figures_that_agree_confirm_the_estimate_and_change_no_size(gemma: Model, plan: MemoryPlan) -> None:
    compute = floor_mib(plan, "compute")
    found = held_against(gemma, plan, whole_mib(floor_mib(plan, "kv"), "kv", "state"), whole_mib(compute, "compute"))
    assert [row.delta_bytes for row in found.rows if row.figure] == [0, 0]
    assert found.warnings == ()
    assert found.plan.bytes() == plan.bytes()
    confirmed = next(a for a in found.plan.allocations if a.component == "compute")
    assert confirmed.certainty == "dry run"
    assert (confirmed.low_bytes, confirmed.high_bytes) == (compute * MIB, (compute + 1) * MIB - 1)
    assert {a.certainty for a in found.plan.allocations if a.component == "kv"} == {"exact"}


def test_a_figure_beyond_the_range_is_told_with_both_and_decides(gemma: Model, plan: MemoryPlan) -> None:
    found = held_against(gemma, plan, whole_mib(9000, "compute"))
    row = next(row for row in found.rows if row.components == ("compute",))
    assert row.beyond_range
    assert row.delta_bytes == 9000 * MIB - plan.bytes(component="compute")
    (warning,) = found.warnings
    assert "llama-server abc1234 reserves 8.8 GiB for compute on CPU where the formula says 23.3 MiB" in warning
    assert warning.endswith("its figure is used.")
    assert plan.verdict is Verdict.TIGHT
    assert found.plan.verdict is Verdict.TOO_BIG
    used = next(a for a in found.plan.allocations if a.component == "compute")
    assert used.certainty == "dry run"
    assert used.reserved_bytes == 9001 * MIB - 1
    assert used.reason.startswith("9,001.00 by llama.cpp's dry run, not 23.28 = ")


def test_a_figure_within_the_range_is_used_without_a_warning(gemma: Model, plan: MemoryPlan) -> None:
    allocations = tuple(
        replace(a, low_bytes=a.reserved_bytes - 5 * MIB, high_bytes=a.reserved_bytes + 5 * MIB)
        if a.component == "compute"
        else a
        for a in plan.allocations
    )
    wide = replace(plan, allocations=allocations)
    found = held_against(gemma, wide, whole_mib(26, "compute"))
    assert found.warnings == ()
    assert found.plan.bytes(component="compute") == 27 * MIB - 1


def test_one_figure_for_two_caches_is_shared_out_as_predicted(gemma: Model, plan: MemoryPlan) -> None:
    found = held_against(gemma, plan, whole_mib(2 * floor_mib(plan, "kv"), "kv", "state"))
    before = [a.reserved_bytes for a in plan.allocations if a.component == "kv"]
    after = [a.reserved_bytes for a in found.plan.allocations if a.component == "kv"]
    assert len(before) == len(after) == 2
    assert after == [pytest.approx(2 * size, rel=0.02) for size in before]
    assert found.plan.resident_bytes(component="kv") == pytest.approx(2 * plan.resident_bytes(component="kv"), rel=0.02)


def test_what_the_formula_knows_nothing_of_is_added(gemma: Model, plan: MemoryPlan) -> None:
    found = held_against(gemma, plan, whole_mib(7, "state"), whole_mib(0, "kv"))
    added = next(a for a in found.plan.allocations if a.component == "state")
    assert (added.certainty, added.reserved_bytes) == ("dry run", 8 * MIB - 1)


def test_weights_are_compared_as_if_they_were_read_and_stay_as_predicted(gemma: Model, plan: MemoryPlan) -> None:
    read = predict(gemma, replace(LAUNCH, load_mode="none"), MACHINE)
    found = held_against(gemma, plan, whole_mib(floor_mib(read, "weights"), "weights"))
    assert (found.rows[0].delta_bytes, found.rows[0].note) == (0, "both as if they were read, not mapped")
    other = held_against(gemma, plan, whole_mib(1, "weights"))
    assert other.plan.bytes() == plan.bytes()
    assert other.warnings[0].endswith("the prediction stands.")


def test_components_that_llama_cpp_is_silent_about_are_rows_without_a_figure(gemma: Model, plan: MemoryPlan) -> None:
    rows = held_against(gemma, plan, whole_mib(floor_mib(plan, "kv"), "kv", "state")).rows
    assert {row.components: row.delta_bytes for row in rows} == {
        ("weights",): None,
        ("kv",): 0,
        ("compute",): None,
        ("output",): None,
    }


def test_a_refusal_is_the_verdict(gemma: Model, plan: MemoryPlan) -> None:
    found = compare(gemma, plan, DryRun(way="llama-server", build="abc", refusal="unknown model architecture."))
    assert found.plan.verdict is Verdict.REFUSED
    assert found.plan.verdict_reason == "llama.cpp refuses this launch: unknown model architecture."


def test_a_refusal_of_ours_that_llama_cpp_does_not_share_is_told(gemma: Model) -> None:
    ours = predict(gemma, replace(LAUNCH, flash_attn="off", cache_type_v="q8_0"), MACHINE)
    found = held_against(gemma, ours, whole_mib(1, "compute"))
    assert found.plan.verdict is Verdict.REFUSED
    assert "llama-server abc1234 itself does not refuse this launch." in found.plan.notes
