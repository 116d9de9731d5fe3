from __future__ import annotations

from typing import Any

import pytest

from planner import Launch
from planner.errors import UsageError
from planner.launch import CACHE_TYPES, ResolvedContext, resolve_context


def resolved(n_ctx_train: int = 32768, **settings: Any) -> ResolvedContext:
    return resolve_context(Launch(**settings), n_ctx_train)


def test_the_defaults_are_llama_server_s() -> None:
    launch = Launch()
    assert (launch.batch_size, launch.ubatch_size, launch.cache_ram, launch.ctx_checkpoints) == (
        2048,
        512,
        8192,
        32,
    )
    assert (launch.cache_type_k, launch.cache_type_v, launch.flash_attn) == ("f16", "f16", "auto")
    assert (launch.ctx_size, launch.repack, launch.swa_full) == (0, True, False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ctx_size", -1),
        ("batch_size", 0),
        ("ubatch_size", 0),
        ("cache_ram", -2),
        ("ctx_checkpoints", -1),
        ("parallel", 0),
        ("main_gpu", -1),
        ("n_cpu_moe", -1),
        ("n_cpu_ffn", -1),
        ("spec_draft_n_max", 0),
    ],
)
def test_a_setting_below_its_smallest_value_is_named(field: str, value: int) -> None:
    with pytest.raises(UsageError, match=rf"{field} is {value}"):
        Launch(**{field: value})


@pytest.mark.parametrize("field", ["ctx_size", "ubatch_size", "cache_ram", "n_gpu_layers", "parallel", "n_cpu_moe"])
def test_a_number_that_llama_server_cannot_hold_is_named(field: str) -> None:
    Launch(**{field: 2**31 - 1})
    with pytest.raises(UsageError, match=rf"{field} is 2,147,483,648; llama-server counts to 2,147,483,647"):
        Launch(**{field: 2**31})


def test_people_and_tokens_are_counted_together() -> None:
    with pytest.raises(UsageError, match=r"200 x 2,147,483,647 tokens are too many: llama-server counts to"):
        Launch.for_users(200, 2**31 - 1)


@pytest.mark.parametrize("field", ["cache_type_k", "cache_type_v"])
def test_a_type_that_is_no_cache_type_is_named_with_those_that_are(field: str) -> None:
    with pytest.raises(UsageError, match=r"'q6_K' is not a cache type\. llama-server knows f32, f16, .*q5_1"):
        Launch(**{field: "q6_K"})


@pytest.mark.parametrize("shares", [(-1.0,), (1.0, float("nan")), (float("inf"),), (1e300, 1.0)])
def test_a_share_that_is_no_share_is_named(shares: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match=r"tensor_split is \(.*\); a share is 0 or more"):
        Launch(tensor_split=shares)


@pytest.mark.parametrize(
    ("field", "known"),
    [
        ("flash_attn", "auto, on, off"),
        ("load_mode", "auto, none, mmap, "),
        ("split_mode", "none, layer"),
        ("spec_type", "none, draft-mtp"),
    ],
)
def test_a_word_that_llama_server_does_not_know_is_quoted_with_those_it_knows(field: str, known: str) -> None:
    with pytest.raises(UsageError, match=rf"{field} is 'yes'\. llama-server knows {known}"):
        Launch(**{field: "yes"})


def test_every_cache_type_makes_a_launch() -> None:
    for cache_type in CACHE_TYPES:
        launch = Launch().with_cache_type(cache_type)
        assert (launch.cache_type_k, launch.cache_type_v) == (cache_type, cache_type)


# Slots and their caches ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parallel", "kv_unified", "slots", "unified"),
    [
        (None, None, 4, True),
        (None, False, 4, True),
        (None, True, 4, True),
        (1, None, 1, False),
        (3, None, 3, False),
        (3, True, 3, True),
    ],
)
def test_slots_left_out_are_four_that_share_one_cache(
    parallel: int | None, kv_unified: bool | None, slots: int, unified: bool
) -> None:
    launch = Launch(parallel=parallel, kv_unified=kv_unified)
    assert (launch.slots, launch.unified) == (slots, unified)


def test_people_get_the_context_they_were_promised() -> None:
    launch = Launch.for_users(3, 5000)
    assert (launch.ctx_size, launch.parallel, launch.unified) == (3 * 5120, 3, False)
    context = resolve_context(launch, 32768)
    assert (context.n_ctx_seq, context.n_ctx) == (5120, 15360)


def test_people_who_share_a_cache_share_the_sum() -> None:
    context = resolve_context(Launch.for_users(3, 5000, unified=True, cache_type="q8_0"), 32768)
    assert (context.n_ctx_seq, context.n_ctx, context.n_stream) == (15360, 15360, 1)


@pytest.mark.parametrize(("users", "ctx", "name"), [(0, 4096, "users"), (1, 0, "context")])
def test_nobody_and_nothing_are_refused(users: int, ctx: int, name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is 0"):
        Launch.for_users(users, ctx)


# What llama.cpp makes of it --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ctx_size", "parallel", "n_ctx_seq", "n_ctx"),
    [
        (5000, 3, 1792, 5376),  # more than was asked for
        (1024, 16, 256, 4096),  # no slot is smaller than 256
        (20000, 3, 6912, 20736),
        (8192, 1, 8192, 8192),
        (100, 1, 256, 256),
        (1, 256, 256, 65536),
    ],
)
def test_a_divided_context_is_rounded_up_for_each_slot(
    ctx_size: int, parallel: int, n_ctx_seq: int, n_ctx: int
) -> None:
    context = resolved(ctx_size=ctx_size, parallel=parallel)
    assert (context.n_ctx_seq, context.n_ctx, context.n_stream, context.n_seq_max) == (
        n_ctx_seq,
        n_ctx,
        parallel,
        parallel,
    )


def test_a_unified_context_is_rounded_once_and_open_to_every_slot() -> None:
    context = resolved(ctx_size=5000, parallel=3, kv_unified=True)
    assert (context.n_ctx_seq, context.n_ctx, context.n_stream, context.n_seq_max) == (5120, 5120, 1, 3)


def test_a_context_left_out_is_the_trained_one_shared_by_four_slots() -> None:
    context = resolved()
    assert (context.n_ctx, context.n_ctx_seq, context.n_stream, context.n_seq_max) == (32768, 32768, 1, 4)


def test_a_context_left_out_beside_explicit_slots_with_one_cache_is_the_trained_one_for_all() -> None:
    context = resolved(8192, parallel=2, kv_unified=True)
    assert (context.n_ctx, context.n_ctx_seq, context.n_stream) == (8192, 8192, 1)


def test_slots_left_out_have_one_cache_whatever_is_said_of_it() -> None:
    assert resolved(8192, kv_unified=False) == resolved(8192)


def test_without_fit_a_context_left_out_is_the_trained_one_for_all() -> None:
    assert resolved(8192, parallel=2, fit=False).n_ctx == 8192


def test_a_context_left_out_beside_explicit_slots_is_the_trained_one_for_each() -> None:
    context = resolved(parallel=2)
    assert (context.n_ctx, context.n_ctx_seq, context.n_stream) == (65536, 32768, 2)


@pytest.mark.parametrize(
    ("settings", "n_batch", "n_ubatch"),
    [
        ({"ctx_size": 8192}, 2048, 512),
        ({"ctx_size": 8192, "ubatch_size": 4096}, 2048, 2048),
        ({"ctx_size": 8192, "batch_size": 128}, 128, 128),
        ({"ctx_size": 100}, 100, 100),  # before the context is rounded up to 256
        ({"ctx_size": 300, "ubatch_size": 512}, 300, 300),
        ({"ctx_size": 8192, "embeddings": True}, 512, 512),  # every token of a batch is an output
        ({"ctx_size": 8192, "embeddings": True, "ubatch_size": 4096}, 4096, 4096),
    ],
)
def test_batches_are_no_longer_than_the_context_or_each_other(
    settings: dict[str, Any], n_batch: int, n_ubatch: int
) -> None:
    context = resolved(parallel=1, **settings)
    assert (context.n_batch, context.n_ubatch) == (n_batch, n_ubatch)
