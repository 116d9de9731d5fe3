"""What holds for every launch."""

from __future__ import annotations

from dataclasses import replace

import made
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import Hardware, Launch, Model, Verdict, predict
from planner.launch import CACHE_TYPES
from planner.units import GIB

MACHINE = Hardware.simulate(ram=64 * GIB)


@given(launch=made.launches(), prompt_tokens=st.one_of(st.none(), st.integers(0, 300_000)))
def test_every_valid_launch_has_a_plan(gemma: Model, smollm: Model, launch: Launch, prompt_tokens: int | None) -> None:
    for model in (gemma, smollm):
        plan = predict(model, launch, MACHINE, prompt_tokens=prompt_tokens)
        assert plan.verdict in Verdict and plan.verdict_reason
        if plan.refusal:
            assert plan.context is None
            continue
        assert plan.context is not None
        assert plan.context.n_ctx % 256 == 0 and plan.context.n_ctx_seq >= 256
        assert plan.context.n_ctx == plan.context.n_ctx_seq * plan.context.n_stream
        assert 0 < plan.n_ctx_slot <= model.hyperparameters.n_ctx_train
        for allocation in plan.allocations:
            assert allocation.growth_bytes >= 0
            assert allocation.reserved_bytes >= 0


HOUSEHOLDS = st.integers(1, 16)
CONTEXTS = st.integers(1, 100_000)
TYPES = st.sampled_from(CACHE_TYPES)


@given(contexts=st.tuples(CONTEXTS, CONTEXTS), users=HOUSEHOLDS, cache_type=TYPES, unified=st.booleans())
def test_more_context_never_takes_fewer_bytes(
    gemma: Model, smollm: Model, contexts: tuple[int, int], users: int, cache_type: str, unified: bool
) -> None:
    for model in (gemma, smollm):
        less, more = (
            predict(
                model,
                Launch.for_users(users, context, unified=unified, cache_type=cache_type),  # type: ignore[arg-type]
                MACHINE,
            )
            for context in sorted(contexts)
        )
        assert less.bytes(component="kv") <= more.bytes(component="kv")
        assert less.bytes(component="weights") == more.bytes(component="weights")
        # A longer mask can hold the logits: then the compute buffer shrinks by them at most.
        assert less.bytes() <= more.bytes() + users * model.hyperparameters.n_vocab * 4


@given(users=st.tuples(HOUSEHOLDS, HOUSEHOLDS), context=CONTEXTS, cache_type=TYPES, unified=st.booleans())
def test_more_people_never_take_fewer_bytes(
    gemma: Model, smollm: Model, users: tuple[int, int], context: int, cache_type: str, unified: bool
) -> None:
    for model in (gemma, smollm):
        less, more = (
            predict(
                model,
                Launch.for_users(count, context, unified=unified, cache_type=cache_type),  # type: ignore[arg-type]
                MACHINE,
            )
            for count in sorted(users)
        )
        for component in ("kv", "output", "overhead", "prompt_cache", "checkpoints"):
            assert less.bytes(component=component) <= more.bytes(component=component)
        assert less.bytes() <= more.bytes()


@given(ubatches=st.tuples(st.integers(1, 2048), st.integers(1, 2048)), context=CONTEXTS)
def test_a_larger_ubatch_never_takes_fewer_bytes_for_one_person(
    gemma: Model, smollm: Model, ubatches: tuple[int, int], context: int
) -> None:
    for model in (gemma, smollm):
        less, more = (
            predict(model, Launch(ctx_size=context, parallel=1, ubatch_size=ubatch), MACHINE)
            for ubatch in sorted(ubatches)
        )
        assert less.bytes(component="kv") <= more.bytes(component="kv")
        assert less.bytes() <= more.bytes() + model.hyperparameters.n_vocab * 4


@given(context=CONTEXTS, users=HOUSEHOLDS)
def test_a_coarser_cache_is_smaller(gemma: Model, smollm: Model, context: int, users: int) -> None:
    for model in (gemma, smollm):
        q4, q8, f16, f32 = (
            predict(model, Launch.for_users(users, context, cache_type=cache_type), MACHINE).bytes(component="kv")
            for cache_type in ("q4_0", "q8_0", "f16", "f32")
        )
        assert q4 < q8 < f16 < f32
        assert (q4 * 32, q8 * 32, f32) == (f16 * 9, f16 * 17, f16 * 2)


@given(launch=made.launches())
def test_what_grows_decides_nothing_that_is_reserved(gemma: Model, launch: Launch) -> None:
    still = replace(launch, cache_ram=0, ctx_checkpoints=0)
    assert predict(gemma, launch, MACHINE).bytes() == predict(gemma, still, MACHINE).bytes()


@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_a_model_without_heads_has_a_plan_too(cache_type: str) -> None:
    model = made.llama(attention__head_count=None)
    plan = predict(model, Launch(ctx_size=4096).with_cache_type(cache_type), MACHINE)  # type: ignore[arg-type]
    assert plan.bytes(component="kv") == 0
