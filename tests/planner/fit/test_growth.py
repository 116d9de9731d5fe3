from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import Hardware, Launch, Model, Verdict, predict
from planner.fit import bound_growth
from planner.units import GIB, MIB

FOUR_OF_8K = Launch(ctx_size=32768, parallel=4)


def test_a_large_machine_keeps_the_defaults(gemma: Model) -> None:
    assert bound_growth(gemma, FOUR_OF_8K, Hardware.simulate(ram=64 * GIB)) is FOUR_OF_8K


def test_a_small_machine_gets_a_prompt_cache_and_checkpoints_that_it_can_hold(gemma: Model) -> None:
    machine = Hardware.simulate(ram=2 * GIB)
    assert predict(gemma, FOUR_OF_8K, machine).verdict is Verdict.TIGHT
    bounded = bound_growth(gemma, FOUR_OF_8K, machine)
    assert predict(gemma, bounded, machine).verdict is Verdict.FITS
    assert 0 < bounded.ctx_checkpoints < 32
    assert 0 < bounded.cache_ram < 8192 and bounded.cache_ram % 256 == 0


def test_only_what_grows_is_changed(gemma: Model) -> None:
    bounded = bound_growth(gemma, FOUR_OF_8K, Hardware.simulate(ram=2 * GIB))
    assert replace(bounded, cache_ram=8192, ctx_checkpoints=32) == FOUR_OF_8K


def test_a_prompt_cache_without_a_limit_gets_one(smollm: Model) -> None:
    bounded = bound_growth(smollm, Launch(ctx_size=8192, parallel=1, cache_ram=-1), Hardware.simulate(ram=16 * GIB))
    assert 8192 <= bounded.cache_ram < 16 * 1024


@pytest.mark.parametrize("ram", [256 * MIB, 500 * MIB])
def test_where_nothing_that_grows_is_to_blame_nothing_is_changed(gemma: Model, ram: int) -> None:
    assert bound_growth(gemma, FOUR_OF_8K, Hardware.simulate(ram=ram)) is FOUR_OF_8K


@given(
    ram_mib=st.integers(64, 40_000),
    users=st.integers(1, 8),
    context=st.integers(256, 40_000),
    cache_ram=st.integers(-1, 20_000),
    checkpoints=st.integers(0, 64),
)
def test_bounding_never_worsens_and_once_is_enough(
    gemma: Model, ram_mib: int, users: int, context: int, cache_ram: int, checkpoints: int
) -> None:
    machine = Hardware.simulate(ram=ram_mib * MIB)
    launch = replace(Launch.for_users(users, context), cache_ram=cache_ram, ctx_checkpoints=checkpoints)
    bounded = bound_growth(gemma, launch, machine)
    before, after = predict(gemma, launch, machine), predict(gemma, bounded, machine)
    assert bound_growth(gemma, bounded, machine) == bounded
    assert bounded.cache_ram >= 0 or bounded is launch
    assert 0 <= bounded.ctx_checkpoints <= launch.ctx_checkpoints
    assert after.bytes() == before.bytes()
    if before.verdict is Verdict.FITS and cache_ram >= 0:
        assert after.verdict is Verdict.FITS
    if bounded is not launch:
        headroom = after.headroom_bytes(machine.host)
        assert headroom is not None and headroom - after.growth_bytes() >= machine.host.margin_bytes
        assert cache_ram < 0 or after.growth_bytes() <= before.growth_bytes()
