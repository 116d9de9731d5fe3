"""People at the server: what they send, and how fast they are served."""

from __future__ import annotations

import pytest

from planner import Launch
from planner.engine.faults import EngineFault
from planner.launch import resolve_context
from planner.measure.users import GENERATED_TOKENS, Workload, speed_of, tokens_of, workload_for

TRAINED = 32768
WORKLOAD = Workload(prompt_tokens=100, generated_tokens=4)


def test_the_speed_of_one_person() -> None:
    """The prompt is read until the first token; the other three come within 1.5 seconds."""
    speed = speed_of(WORKLOAD, 10.0, [[12.0, 12.5, 13.0, 13.5]])
    assert speed.users == 1
    assert speed.first_token_s == pytest.approx(2.0)
    assert speed.prompt_tokens_per_s == pytest.approx(50.0)
    assert speed.generated_tokens_per_s == pytest.approx(2.0)


def test_generation_is_judged_while_everyone_is_answered() -> None:
    first = [1.0, 2.0, 3.0, 4.0]
    second = [2.0, 3.0, 4.0, 5.0]
    speed = speed_of(WORKLOAD, 0.0, [first, second])
    # From 2.0 (both are being answered) to 4.0 (the first is done): 3.0 and 4.0 of each.
    assert speed.generated_tokens_per_s == pytest.approx(4 / 2.0)
    assert speed.prompt_tokens_per_s == pytest.approx(200 / 2.0)
    assert speed.first_token_s == pytest.approx(2.0)


def test_answers_that_follow_one_another_are_judged_over_the_whole_time() -> None:
    speed = speed_of(WORKLOAD, 0.0, [[1.0, 2.0], [3.0, 5.0]])
    assert speed.generated_tokens_per_s == pytest.approx(3 / 4.0)


def test_answers_of_one_token_have_no_rate_and_divide_by_nothing() -> None:
    speed = speed_of(Workload(prompt_tokens=10, generated_tokens=1), 0.0, [[1.0]])
    assert speed.generated_tokens_per_s == 0.0
    assert speed.prompt_tokens_per_s == pytest.approx(10.0)


def test_a_clock_that_stood_still_divides_by_nothing() -> None:
    speed = speed_of(WORKLOAD, 1.0, [[1.0, 1.0], [1.0, 1.0]])
    assert (speed.prompt_tokens_per_s, speed.generated_tokens_per_s, speed.first_token_s) == (0.0, 0.0, 0.0)


def test_a_prompt_fills_the_compute_buffer_at_its_full_width() -> None:
    context = resolve_context(Launch.for_users(2, 4096), TRAINED)
    workload = workload_for(context)
    assert workload.prompt_tokens > context.n_ubatch
    assert workload.generated_tokens == GENERATED_TOKENS


@pytest.mark.parametrize("users", [1, 2, 5, 8])
@pytest.mark.parametrize("context", [1, 256, 512, 1024, 8192])
@pytest.mark.parametrize("unified", [False, True])
def test_prompt_and_answer_fit_into_what_a_person_has(users: int, context: int, unified: bool) -> None:
    resolved = resolve_context(Launch.for_users(users, context, unified=unified), TRAINED)
    workload = workload_for(resolved)
    shared = users if unified else 1
    assert workload.prompt_tokens >= 1
    assert workload.generated_tokens >= 1
    assert shared * (workload.prompt_tokens + workload.generated_tokens) <= resolved.n_ctx_seq


def test_many_people_in_a_tiny_shared_context_still_get_a_word() -> None:
    workload = workload_for(resolve_context(Launch(ctx_size=256, parallel=64, kv_unified=True), TRAINED))
    assert workload.prompt_tokens >= 1
    assert workload.generated_tokens >= 1


@pytest.mark.parametrize("tokens", [None, 5, "abc", ["x"], [None], [1, {}], [float("inf")]])
def test_tokens_that_are_no_numbers_are_a_fault_of_the_engine(tokens: object) -> None:
    assert tokens_of({"tokens": [1, 2]}) == [1, 2] and tokens_of({}) == []
    with pytest.raises(EngineFault, match="tokens that are no numbers"):
        tokens_of({"tokens": tokens})
