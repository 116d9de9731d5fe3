"""Compute buffers against what llama.cpp's library reserved for full-size models.

The data lie beside the checkout where there are any. Their output rows are those of a whole ubatch, not a
server's, so that they are compared with logits of that size. Caches and states are held against the same data
in `test_truth.py`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.accuracy_sources import full_size_launch, full_size_models
from planner import Launch, Model
from planner.launch import resolve_context
from planner.memory.graph import graph_sizes
from planner.memory.kv import kv_caches
from planner.memory.peaks import GraphSizes

INDEXERS = ("deepseek32", "glm-dsa", "minimax-m3", "deepseek4")
"""Architectures whose graphs hold the scores of an indexer: `test_compute.py` holds them against their range."""


def full_size(shared: Path) -> Iterator[tuple[Model, Launch, dict[str, str]]]:
    """Every model and launch whose compute buffer was reserved."""
    models = full_size_models(shared / "fullsize")
    with (shared / "fullsize" / "truth.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        case = json.loads(row["case"])
        if row["compute_bytes"] not in ("", "null") and "ctx_type" not in case:
            yield models[row["model"]], full_size_launch(case), row


def with_all_logits(model: Model, launch: Launch) -> GraphSizes:
    """The sizes of a graph that computes logits for every token of an ubatch, as the library reserves it."""
    shape = model.hyperparameters
    context = resolve_context(launch, shape.n_ctx_train)
    caches = kv_caches(model.layout, launch, context)
    return graph_sizes(shape, model.layout, launch, context, caches, graph=model.graph, outputs=512)


def test_compute_buffers_of_full_size_models_with_the_logits_of_a_whole_ubatch(shared: Path) -> None:
    checked = 0
    for model, launch, row in full_size(shared):
        if model.architecture in INDEXERS:
            continue
        sizes = with_all_logits(model, launch)
        measured = json.loads(row["compute_bytes"])["CPU"]
        # The library leaves a gap of one hidden state in some layouts; delta nets without flash attention need
        # up to six more, and what has no attention at all a little less.
        gap = 6 if model.architecture in ("qwen3next", "qwen35") and launch.flash_attn == "off" else 1
        off = measured - sizes.host_total()
        assert -0.009 * measured <= off <= 0.001 * measured + gap * sizes.hidden, row
        checked += 1
    assert checked >= 150


def test_compute_buffers_of_llama_and_gemma_3_are_within_a_thousandth(shared: Path) -> None:
    cases = [case for case in full_size(shared) if case[0].architecture in ("llama", "gemma3")]
    assert len(cases) == 14
    for model, launch, row in cases:
        sizes = with_all_logits(model, launch)
        measured = json.loads(row["compute_bytes"])["CPU"]
        # The library leaves a gap of one or two hidden states in its layout when --swa-full is given.
        allowed = 2 * sizes.hidden if launch.swa_full else 0
        assert -0.001 * measured <= measured - sizes.host_total() <= 0.001 * measured + allowed, row
