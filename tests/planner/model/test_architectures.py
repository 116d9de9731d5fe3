"""The table of architectures against what llama.cpp reserved: one line per rule, nothing else needed.

Each line of `tests/data/architectures.jsonl` is a model (its hyperparameters, what they leave out is default)
and what llama.cpp reserved for launches of it, spelt `cells x layers K+V, ...; state+state` in MiB as llama.cpp
prints them, or in bytes. `ahead` is the second context of `--spec-type draft-mtp`, which holds nothing but the
blocks that predict further tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy_sources import figures_of, find_shared
from benchmarks.evidence import model_of
from planner.errors import ModelError
from planner.launch import Launch, resolve_context
from planner.memory.draft import draft_caches, draft_refusal
from planner.memory.kv import KvCache, kv_caches, kv_refusal, state_bytes
from planner.model import Model
from planner.model.architectures import ARCHITECTURES, UNSUPPORTED
from planner.model.gguf import MetadataValue
from planner.units import MIB

PRINTED = 0.0051 * MIB
DATA = Path(__file__).parents[2] / "data"
NAMES = set((DATA / "architectures.txt").read_text(encoding="utf-8").split())
"""Every architecture of build b11434."""


def rows() -> Iterator[Any]:
    for line in (DATA / "architectures.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        keys = {key: tuple(value) if isinstance(value, list) else value for key, value in row["keys"].items()}
        for settings, reserved in row["reserved"]:
            name = " ".join([row["architecture"], *map(str, settings.values())])
            yield pytest.param(row["architecture"], keys, Launch(**settings), reserved, id=name)


def model_with(architecture: str, keys: Mapping[str, MetadataValue]) -> Model:
    return model_of(architecture, architecture, **{key.replace(".", "__"): value for key, value in keys.items()})


@pytest.mark.parametrize(("architecture", "keys", "launch", "reserved"), rows())
def test_each_rule_reserves_what_llama_cpp_does(
    architecture: str, keys: Mapping[str, MetadataValue], launch: Launch, reserved: str
) -> None:
    model = model_with(architecture, keys)
    refusal = kv_refusal(model.hyperparameters, model.layout, launch)
    assert bool(refusal) == (reserved == "refused")
    if refusal:
        return
    context = resolve_context(launch, model.hyperparameters.n_ctx_train)
    ahead = reserved.startswith("ahead ")
    reserved = reserved.removeprefix("ahead ")
    if reserved.endswith(" bytes"):
        figures = figures_of(model, launch)
        assert figures["ahead" if ahead else "context"] == int(reserved.removesuffix(" bytes"))
        return
    caches, _, states = reserved.partition("; ")
    if ahead:
        assert_caches(draft_caches(model.layout, launch, context), caches)
        return
    assert_caches(kv_caches(model.layout, launch, context), caches)
    printed = [float(state) for state in states.split("+") if state]
    ours = sum(state_bytes(state, context) for state in model.layout.states)
    assert ours == pytest.approx(sum(printed) * MIB, abs=PRINTED * len(printed))


def assert_caches(caches: tuple[KvCache, ...], expected: str) -> None:
    printed = [re.split(r"[x +]", cache) for cache in expected.split(", ") if cache]
    theirs = sorted((int(cells), int(layers), float(k), float(v)) for cells, layers, k, v in printed)
    ours = sorted(
        (cache.cells, len(cache.layout.layers), cache.k_bytes / MIB, cache.v_bytes / MIB)
        for cache in caches
        if cache.layout.layers
    )
    assert [figures[:2] for figures in ours] == [figures[:2] for figures in theirs]
    for own, their in zip(ours, theirs, strict=True):
        assert own == pytest.approx(their, abs=0.0051)


def keys_of(architecture: str) -> Mapping[str, MetadataValue]:
    return next(row.values[1] for row in rows() if row.values[0] == architecture)


def test_every_architecture_that_llama_cpp_knows_has_a_rule() -> None:
    assert set(ARCHITECTURES) >= NAMES
    assert set(UNSUPPORTED) <= set(ARCHITECTURES)


def test_the_copied_list_of_architectures_is_the_one_in_the_reference_data() -> None:
    shared = find_shared()
    if shared is None:
        pytest.skip("the reference data are not here")
    lines = (shared / "arch_memory.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert {line.split(",", 1)[0] for line in lines} - {"(unknown)"} == NAMES


LLAMA: dict[str, MetadataValue] = {
    "block_count": 2,
    "embedding_length": 256,
    "context_length": 256,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
GEMMA3: dict[str, MetadataValue] = {**LLAMA, "attention.sliding_window": 32}


@pytest.mark.parametrize("key", ["attention.head_count_kv", "attention.head_count", "feed_forward_length"])
@pytest.mark.parametrize("entries", [(2,), (2, 2, 2)], ids=["shorter", "longer"])
def test_an_array_of_another_length_than_the_layers_is_refused_in_llama_cpps_words(
    key: str, entries: tuple[int, ...]
) -> None:
    model = model_with("llama", {**LLAMA, key: entries})
    words = f"key llama.{key} has wrong array length; expected 2, got {len(entries)}"
    with pytest.raises(ModelError, match=re.escape(words)):
        _ = model.layout


def test_indexer_types_are_one_per_layer_of_the_trunk() -> None:
    model = model_with("hy_v4", {**keys_of("hy_v4"), "nextn_predict_layers": 1})
    with pytest.raises(ModelError, match="expected 1, got 2"):
        _ = model.layout


def test_a_pattern_of_windows_may_have_any_length() -> None:
    for pattern in ((1, 0, 1), (1,)):
        model = model_with("gemma3", {**GEMMA3, "attention.sliding_window_pattern": pattern})
        assert model.hyperparameters.swa_layers == (True, False)


def test_a_number_where_an_array_is_usual_stands_for_every_layer_or_a_period() -> None:
    assert model_with("llama", LLAMA).hyperparameters.n_head_kv == (2, 2)
    every_second = model_with("gemma3", {**GEMMA3, "block_count": 4, "attention.sliding_window_pattern": 2})
    assert every_second.hyperparameters.swa_layers == (True, False, True, False)
    all_of_them = model_with("gemma3", {**GEMMA3, "attention.sliding_window_pattern": 0})
    assert all_of_them.hyperparameters.swa_layers == (True, True)


def test_an_array_of_windows_is_required_where_llama_cpp_has_no_period() -> None:
    model = model_with("granite_swa", {**GEMMA3, "attention.sliding_window_pattern": 2})
    with pytest.raises(ModelError, match=r"no array granite_swa.attention.sliding_window_pattern"):
        _ = model.layout


def test_a_window_that_llama_cpp_requires_is_missed() -> None:
    with pytest.raises(ModelError, match=r"no gpt-oss.attention.sliding_window"):
        _ = model_with("gpt-oss", LLAMA).layout
    assert model_with("gemma3", LLAMA).hyperparameters.n_swa == 0


def test_layers_without_kv_heads_count_and_take_nothing() -> None:
    model = model_with("deci", {**LLAMA, "attention.head_count_kv": (2, 0)})
    no_flash = Launch(ctx_size=8192, parallel=1, flash_attn="off")
    # Transposed, V of both is as wide as the wider one.
    assert_caches(kv_caches(model.layout, no_flash, resolve_context(no_flash, 256)), "8192x2 2+4")


def test_nothing_is_guessed_ahead_without_the_blocks_for_it() -> None:
    mtp = Launch(ctx_size=4096, spec_type="draft-mtp")
    plain = model_with("llama", LLAMA)
    assert "no blocks that predict further tokens" in draft_refusal(plain.layout, mtp)
    assert not draft_refusal(plain.layout, Launch(ctx_size=4096))
    assert not draft_refusal(model_with("glm4moe", {**LLAMA, "nextn_predict_layers": 1}).layout, mtp)
