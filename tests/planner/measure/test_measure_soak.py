"""Soaks: what conversation after conversation leaves in memory, as llama.cpp says it and as it was predicted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measured_run import Run

from planner import Launch, Model
from planner.engine.find import Engine
from planner.launch import CacheType, resolve_context
from planner.measure import Load, measure
from planner.measure.growth import conversation, hold_growth
from planner.measure.measurement import Kept
from planner.measure.soak import Script, kept_prompts, script_for
from planner.measure.users import Workload
from planner.units import MIB

LOG = """\
0.05.134.878 I srv        update:  - cache state: 1 prompts, 13.145 MiB (limits: 30.000 MiB, 2048 tokens, 2048 est)
0.05.139.276 I srv        update:    - prompt 0x2a4db870:     307 tokens, checkpoints:  2,    13.145 MiB
0.07.905.297 I srv        update:  - cache state: 2 prompts, 26.290 MiB (limits: 30.000 MiB, 2048 tokens, 2048 est)
0.07.911.118 I srv        update:    - prompt 0x2a4db870:     307 tokens, checkpoints:  2,    13.145 MiB
0.07.911.133 I srv        update:    - prompt 0x2dd914b0:     307 tokens, checkpoints:  2,    13.145 MiB
"""
"""b11434: Gemma 3 270M, f16, two slots, ubatch 64, prompts of 300 tokens."""


def test_the_last_word_of_the_log_counts() -> None:
    size, kept = kept_prompts(LOG)
    assert size == pytest.approx(26.29 * MIB, abs=1)
    assert kept == (Kept(307, 2, round(13.145 * MIB)),) * 2


def test_a_log_that_says_nothing_keeps_nothing() -> None:
    assert kept_prompts("") == (0, ())


def test_one_conversation_is_as_the_log_says(gemma: Model, smollm: Model) -> None:
    """Figures of b11434 for 307 tokens, of which 300 were the prompt."""
    launch = replace(Launch.for_users(2, 1024), ubatch_size=64)
    for model, state_mib, kept_mib in ((gemma, 5.404, 13.145), (smollm, 6.750, 6.750)):
        context = resolve_context(launch, model.hyperparameters.n_ctx_train)
        told = conversation(model, launch, context, [300], 307)
        assert told.state_bytes == pytest.approx(state_mib * MIB, abs=0.001 * MIB)
        assert told.kept_bytes == pytest.approx(kept_mib * MIB, abs=0.001 * MIB)


def test_without_checkpoints_only_the_state_is_kept(gemma: Model) -> None:
    launch = replace(Launch.for_users(2, 1024), ubatch_size=64, ctx_checkpoints=0)
    context = resolve_context(launch, gemma.hyperparameters.n_ctx_train)
    assert conversation(gemma, launch, context, [300], 307).checkpoints_bytes == 0


def test_a_long_conversation_has_turns_and_a_short_one_is_a_single_question() -> None:
    context = resolve_context(replace(Launch.for_users(2, 1024), ubatch_size=64), 8192)
    assert script_for(Workload(150, 32), context) == Script((150,), 8)
    script = script_for(Workload(460, 32), context)
    assert script == Script((152, 152), 8)
    assert script.prompt_ends == (152, 312)
    assert script.tokens == 319
    assert script.tokens <= 460 + 32


@pytest.mark.engine
@pytest.mark.xdist_group("soaks")
@pytest.mark.parametrize(
    ("name", "cache_type", "unified", "cache_ram", "fill"),
    [
        ("gemma", "q8_0", True, 24, 0.32),  # two turns each
        ("smollm", "f16", False, 4, 0.05),
    ],
)
def test_a_soak_grows_as_predicted(
    request: pytest.FixtureRequest,
    engine: Engine,
    name: str,
    cache_type: CacheType,
    unified: bool,
    cache_ram: int,
    fill: float,
) -> None:
    model: Model = request.getfixturevalue(name)
    launch = replace(
        Launch.for_users(2, 1024, unified=unified, cache_type=cache_type), ubatch_size=32, cache_ram=cache_ram
    )
    measurement = measure(model, launch, engine, load=Load(fill=fill, soak_minutes=0.15))
    plan = Run(model, launch, measurement, ()).predict()
    growth = hold_growth(plan, model, measurement)
    soak = measurement.soak
    assert growth is not None and soak is not None
    assert soak.conversations >= 2
    assert soak.kept, "nothing was kept"
    # What llama.cpp keeps of each conversation, to the thousandth of a MiB that it prints.
    assert growth.kept_bytes == pytest.approx(growth.predicted_kept_bytes, abs=0.001 * MIB * len(soak.kept))
    assert growth.kept_bytes <= cache_ram * MIB
    # And what the system says. The heap does not give back at once what was kept before.
    assert growth.grown_bytes is not None
    assert growth.predicted_bytes - 2 * MIB <= growth.grown_bytes
    assert growth.grown_bytes <= growth.predicted_bytes + 2 * growth.entry_bytes + 6 * MIB
    assert growth.limit_bytes is not None and growth.predicted_bytes <= growth.limit_bytes
    assert [phase.phase for phase in measurement.phases][-3:] in (
        ["one", "idle", "soak"],
        ["idle", "soak", "stopping"],
    )


@pytest.mark.engine
@pytest.mark.xdist_group("soaks")
def test_a_soak_ends_within_a_conversation_when_its_time_is_over(smollm: Model, engine: Engine) -> None:
    launch = replace(Launch.for_users(2, 1024), ubatch_size=32, cache_ram=64)
    measurement = measure(smollm, launch, engine, load=Load(fill=1.0, soak_minutes=0.001))
    soak = measurement.soak
    assert soak is not None
    assert soak.turns > 4
    assert (soak.ended, soak.conversations) == ("time", 0)
    turns = script_for(
        Workload(measurement.everyone.prompt_tokens, measurement.everyone.generated_tokens),
        resolve_context(launch, 8192),
    ).prompt_ends
    for tokens in soak.held:  # whole turns, and not all of them
        assert tokens in (0, *(end + 7 for end in turns[:-1]))
    growth = hold_growth(Run(smollm, launch, measurement, ()).predict(), smollm, measurement)
    assert growth is not None
    assert growth.kept_bytes == pytest.approx(growth.predicted_kept_bytes, abs=0.001 * MIB * max(1, len(soak.kept)))
