"""A grid from a few answers: what lies between is what would have been answered, and bends are found by asking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from planner import Hardware, Launch, MemoryPlan, Model, predict
from planner.engine.dry_figures import DryFigure, DryRun
from planner.engine.dry_run import Library
from planner.reconcile.refinement import Point, Refined, refine
from planner.units import GIB, KIB, MIB

USERS = (1, 2, 3, 4, 5, 8)
CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
HEADERS = ("llama-dense", "gemma3-dense", "qwen3moe-moe", "deepseek2-moe", "qwen3next-moe", "lfm2-dense")
MACHINE = Hardware.simulate(ram=64 * GIB)
Answer = Callable[[Point, MemoryPlan], DryRun]


def plans_of(model: Model, cache_type: str = "f16") -> dict[Point, MemoryPlan]:
    launches = {
        Point(users, context): Launch.for_users(users, context, cache_type=cache_type)  # type: ignore[arg-type]
        for users in USERS
        for context in CONTEXTS
    }
    return {point: predict(model, launch, MACHINE) for point, launch in launches.items()}


def whole_mib(size_bytes: int) -> DryRun:
    """An answer as a llama-server gives it."""
    low = size_bytes // MIB * MIB
    figure = DryFigure(device="CPU", components=("compute",), size_bytes=low, low_bytes=low, high_bytes=low + MIB - 1)
    return DryRun(way="llama-server", build="abc1234", figures=(figure,))


def asked_until_known(plans: dict[Point, MemoryPlan], answer: Answer) -> tuple[Refined, dict[Point, DryRun]]:
    answers: dict[Point, DryRun] = {}
    while (found := refine(plans, answers)).question is not None:
        assert found.question not in answers
        answers[found.question] = answer(found.question, plans[found.question])
    return found, answers


def compute_of(told: DryRun) -> DryFigure:
    (figure,) = (figure for figure in told.figures if figure.components == ("compute",))
    return figure


def test_where_the_formula_is_right_nine_answers_confirm_all(gemma: Model) -> None:
    plans = plans_of(gemma)
    found, answers = asked_until_known(plans, lambda _, plan: whole_mib(plan.bytes(component="compute")))
    assert len(answers) == 9
    assert answers.keys() | found.between.keys() == plans.keys()
    for point, told in found.between.items():
        assert compute_of(told).size_bytes == plans[point].bytes(component="compute")


def test_a_formula_that_is_off_by_a_straight_line_is_put_right_by_as_many(gemma: Model) -> None:
    plans = plans_of(gemma)

    def true_bytes(point: Point, plan: MemoryPlan) -> int:
        return plan.bytes(component="compute") + 7 * MIB + 900 * point.ctx_per_user

    found, answers = asked_until_known(plans, lambda point, plan: whole_mib(true_bytes(point, plan)))
    assert len(answers) == 9
    for point, told in found.between.items():
        assert compute_of(told).holds(true_bytes(point, plans[point]))


def test_a_bend_that_the_formula_does_not_know_is_found_by_asking_more(gemma: Model) -> None:
    plans = plans_of(gemma)

    def true_bytes(point: Point, plan: MemoryPlan) -> int:
        return plan.bytes(component="compute") + max(0, point.ctx_per_user - 20_000) * 5 * KIB

    found, answers = asked_until_known(plans, lambda point, plan: whole_mib(true_bytes(point, plan)))
    assert 9 < len(answers) < len(plans)
    for point, told in found.between.items():
        assert compute_of(told).holds(true_bytes(point, plans[point]))


def test_nothing_is_told_across_a_refusal(gemma: Model) -> None:
    plans = plans_of(gemma)
    refusal = DryRun(way="llama-server", build="abc1234", refusal="out of luck")

    def answer(point: Point, plan: MemoryPlan) -> DryRun:
        return refusal if point.ctx_per_user > 8192 else whole_mib(plan.bytes(component="compute"))

    found, answers = asked_until_known(plans, answer)
    assert all(point.ctx_per_user <= 8192 for point in found.between)
    assert all(answers[point] is refusal for point in plans if point.ctx_per_user > 8192 and point in answers)
    assert answers.keys() | found.between.keys() == plans.keys()


def test_a_single_launch_is_asked_about(gemma: Model) -> None:
    point = Point(2, 8192)
    plans = {point: plans_of(gemma)[point]}
    assert refine(plans, {}).question == point
    assert refine(plans, {point: whole_mib(MIB)}) == Refined({}, None)


@pytest.mark.engine
@pytest.mark.parametrize("cache_type", ["f16", "q4_0"])
@pytest.mark.parametrize(
    "name", ["llama-dense", "gemma3-dense", "qwen3moe-moe", "deepseek2-moe", "qwen3next-moe", "lfm2-dense"]
)
def test_what_lies_between_is_what_llama_cpp_would_have_answered(shared: Path, name: str, cache_type: str) -> None:
    model = Model.open(shared / "archs" / f"{name}.gguf", header_only=True)
    plans = plans_of(model, cache_type)
    with Library() as library:
        found, answers = asked_until_known(plans, lambda _, plan: library.dry_run(model, plan.launch))
        assert len(found.between) + len(answers) == len(plans)
        for point, told in found.between.items():
            true = {(f.device, f.components): f for f in library.dry_run(model, plans[point].launch).figures}
            assert true.keys() == {(figure.device, figure.components) for figure in told.figures}
            for figure in told.figures:
                asked = true[figure.device, figure.components]
                assert figure.low_bytes <= asked.high_bytes and asked.low_bytes <= figure.high_bytes
