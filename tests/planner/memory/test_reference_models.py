"""Against what llama.cpp reserved for small models of each architecture and for full-size ones.

The data lie beside the checkout where there are any; their compute buffers are those of another build, or with
other output rows than a server's, and are compared only where that can be undone.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import made

from planner import Hardware, Launch, Model, Verdict, predict
from planner.launch import resolve_context
from planner.memory.compute import graph_sizes
from planner.memory.kv import kv_caches
from planner.model.architectures import ARCHITECTURES
from planner.units import GIB, MIB

MACHINE = Hardware.simulate(ram=1024 * GIB)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_caches_of_small_models_have_llama_cpp_s_cells_layers_and_sizes(shared: Path) -> None:
    architectures = {row["file"]: row["architecture"] for row in rows_of(shared / "archs" / "index.csv")}
    checked = 0
    for row in rows_of(shared / "archs" / "truth.csv"):
        if architectures[row["file"]] not in ARCHITECTURES:
            continue
        model = Model.open(shared / "archs" / row["file"], header_only=True)
        launch = Launch(
            ctx_size=int(row["ctx_size"]),
            parallel=int(row["parallel"]),
            kv_unified=row["kv_unified"] == "1",
            cache_type_k=row["cache_type_k"],  # type: ignore[arg-type]
            cache_type_v=row["cache_type_v"],  # type: ignore[arg-type]
            flash_attn=row["flash_attn"],  # type: ignore[arg-type]
            ubatch_size=int(row["ubatch"]),
            swa_full=row["swa_full"] == "1",
        )
        plan = predict(model, launch, MACHINE)
        assert (plan.verdict is Verdict.REFUSED) == (row["context"] == "0"), row
        context = resolve_context(launch, model.hyperparameters.n_ctx_train)
        caches = kv_caches(model.hyperparameters, launch, context)
        assert (context.n_ctx, context.n_ctx_seq) == (int(row["n_ctx"]), int(row["n_ctx_seq"])), row
        assert [
            {
                "cells": cache.cells,
                "layers": len(cache.layers),
                "seqs": context.n_seq_max,
                "streams": cache.n_stream,
                "k_type": launch.cache_type_k,
                "k_mib": round(cache.k_bytes / MIB, 2),
                "v_type": launch.cache_type_v,
                "v_mib": round(cache.v_bytes / MIB, 2),
            }
            for cache in caches
        ] == json.loads(row["kv"]), row
        checked += 1
    assert checked == 24


def full_size(shared: Path) -> list[tuple[Model, Launch, dict[str, str]]]:
    metadata: dict[str, dict[str, Any]] = json.loads((shared / "fullsize" / "metadata.json").read_text())
    cases = []
    for row in rows_of(shared / "fullsize" / "truth.csv"):
        keys = metadata.get(row["model"])
        if keys is None or keys["general.architecture"] not in ARCHITECTURES:
            continue
        case = json.loads(row["case"])
        launch = Launch(
            ctx_size=case["n_ctx"],
            parallel=case["n_seq_max"],
            kv_unified=case.get("kv_unified", False),
            cache_type_k=case.get("type_k", "f16"),
            cache_type_v=case.get("type_v", "f16"),
            flash_attn=case.get("fa", "auto"),
            swa_full=case["swa_full"],
        )
        cases.append((made.model(keys), launch, row))
    return cases


def test_caches_of_full_size_models_are_equal_to_the_byte(shared: Path) -> None:
    cases = full_size(shared)
    assert len(cases) == 14
    for model, launch, row in cases:
        assert predict(model, launch, MACHINE).bytes(component="kv") == int(row["context_bytes"]), row


def test_compute_buffers_of_full_size_models_with_the_logits_of_a_whole_ubatch(shared: Path) -> None:
    for model, launch, row in full_size(shared):
        shape = model.hyperparameters
        context = resolve_context(launch, shape.n_ctx_train)
        sizes = graph_sizes(shape, launch, context, kv_caches(shape, launch, context))
        whole = replace(sizes, logits=shape.n_vocab * 512 * 4)
        measured = json.loads(row["compute_bytes"])["CPU"]
        # The library leaves a gap of one or two hidden states in its layout when --swa-full is given.
        allowed = 2 * sizes.hidden if launch.swa_full else 0
        assert -0.001 * measured <= measured - whole.total <= 0.001 * measured + allowed, row
