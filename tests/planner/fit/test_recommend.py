from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner import Hardware, Launch, Model, predict
from planner.fit import Candidate, recommend
from planner.launch import CACHE_TYPES, CacheType
from planner.units import GIB, MIB

LAUNCH = Launch(ctx_size=131072, parallel=4, cache_ram=0, ctx_checkpoints=0)
"""Four people with 32k each: about 730, 520 and 400 MiB with f16, q8_0 and q4_0."""


def candidates(model: Model, ram: int, speeds: Mapping[CacheType, float | None] | None = None) -> list[Candidate]:
    machine = Hardware.simulate(ram=ram)
    made = []
    for cache_type, speed in (speeds or {"f16": None, "q8_0": None, "q4_0": None}).items():
        plan = predict(model, LAUNCH.with_cache_type(cache_type), machine)
        made.append(
            Candidate(
                launch=plan.launch,
                plan=plan,
                resident_bytes=plan.resident_bytes(),
                generated_tokens_per_s=speed,
            )
        )
    return made


def needed(model: Model, cache_type: CacheType) -> int:
    return predict(model, LAUNCH.with_cache_type(cache_type), Hardware.simulate(ram=GIB)).bytes()


def recommended(found: list[Candidate]) -> tuple[str, str]:
    best = recommend(found)
    assert best is not None
    assert best.reason.endswith(".")
    assert best.reason.count(". ") == 1, "two sentences"
    return best.launch.cache_type_k, best.reason


def test_where_everything_fits_the_most_precise_is_taken(gemma: Model) -> None:
    cache_type, reason = recommended(candidates(gemma, 16 * GIB))
    assert cache_type == "f16"
    assert "f16 cache loses nothing and fits: " in reason
    assert "GiB of host memory stay free" in reason
    assert " q4_0 would save " in reason and reason.endswith(" MiB, at the price of less exact answers.")


def test_where_f16_is_too_big_the_next_is_taken_and_f16_is_named(gemma: Model) -> None:
    cache_type, reason = recommended(candidates(gemma, needed(gemma, "q8_0") * 10 // 8))
    assert cache_type == "q8_0"
    assert reason.startswith("q8_0 is the most precise cache that fits, where f16 would leave too little memory.")


def test_what_fits_well_wins_over_what_is_more_precise_and_tight(gemma: Model) -> None:
    found = candidates(gemma, needed(gemma, "f16") + 10 * MIB)
    assert [candidate.plan.verdict.value for candidate in found] == ["tight", "fits", "fits"]
    assert recommended(found)[0] == "q8_0"


def test_where_only_one_is_tight_it_just_fits(gemma: Model) -> None:
    cache_type, reason = recommended(candidates(gemma, needed(gemma, "q4_0") + MIB))
    assert cache_type == "q4_0"
    assert reason.startswith("q4_0 is the most precise cache that just fits, where f16 and q8_0 would leave too")
    assert " No other type measured takes less than its " in reason


def test_a_refused_type_is_said_to_be_refused(gemma: Model) -> None:
    all_types = candidates(gemma, 16 * GIB)
    (f16,) = (one for one in all_types if one.launch.cache_type_k == "f16")
    refused = replace(f16, plan=replace(f16.plan, refusal="llama.cpp refuses it"))
    _, reason = recommended([refused, *(one for one in all_types if one is not f16)])
    assert reason.startswith("q8_0 is the most precise cache that fits, where llama.cpp refuses f16.")


def test_where_nothing_fits_nothing_is_recommended(gemma: Model) -> None:
    assert recommend(candidates(gemma, 64 * MIB)) is None
    assert recommend([]) is None


def test_one_candidate_says_what_it_holds(gemma: Model) -> None:
    cache_type, reason = recommended(candidates(gemma, 16 * GIB, {"f16": None}))
    assert cache_type == "f16"
    assert reason.endswith(" MiB with everyone served.")


def test_a_coarse_cache_is_never_said_to_lose_nothing(gemma: Model) -> None:
    for cache_type in ("q8_0", "q4_0"):
        reason = recommended(candidates(gemma, 16 * GIB, {cache_type: None}))[1]
        assert "loses nothing" not in reason


def test_precision_decides_and_not_the_order_of_llama_server_s_help(gemma: Model) -> None:
    assert recommended(candidates(gemma, 16 * GIB, {"q4_0": None, "q5_1": None}))[0] == "q5_1"
    for cache_type in CACHE_TYPES:
        assert recommended(candidates(gemma, 16 * GIB, {cache_type: None}))[0] == cache_type


def test_the_change_in_speed_is_said_where_it_was_measured(gemma: Model) -> None:
    def reason(f16: float | None, q4: float | None) -> str:
        return recommended(candidates(gemma, 16 * GIB, {"f16": f16, "q4_0": q4}))[1]

    assert " but generate 20 % slower, at the price" in reason(100.0, 80.0)
    assert " and generate 30 % faster, at the price" in reason(100.0, 130.0)
    for noise in (91.5, 98.0, 108.5):
        assert " at about the same speed, at the price" in reason(100.0, noise)
    for unknown in (reason(None, 80.0), reason(100.0, None)):
        assert "speed" not in unknown and "generate" not in unknown
