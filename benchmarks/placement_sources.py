"""Weights, caches and state on every device, held against the log of a llama.cpp that has two of them.

Two RPC servers of this processor stand in for accelerators (`benchmarks/oracle.py`); the models are tiny ones
from `shared/archs`, grown to several layers and quantised (`benchmarks/ghosts.py`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.accuracy_sources import Case, Figure
from benchmarks.ghosts import ghost, grow
from benchmarks.oracle import Oracle
from planner import Hardware, Launch, MemoryPlan, Model, predict
from planner.engine.log import EngineLog
from planner.units import MIB

LOGGED_DIGIT = 0.01
"""MiB: the last digit of a logged figure, which is wrong by at most half of it."""

Figures = dict[tuple[str, str], tuple[float, int]]
"""MiB by what they are for and where they lie, and how many figures of the log they are the sum of."""

COMPONENTS = {"weights": "model", "kv": "kv", "state": "state"}


def logged(log: EngineLog) -> Figures:
    """Model, caches and states of a log."""
    figures: Figures = {}
    for buffer in log.buffers:
        if buffer.kind in COMPONENTS.values():
            key = (buffer.kind, buffer.device)
            size, count = figures.get(key, (0.0, 0))
            figures[key] = (size + buffer.size_bytes / MIB, count + 1)
    return figures


def planned(plan: MemoryPlan) -> Figures:
    """The same of a plan."""
    figures: Figures = {}
    for allocation in plan.allocations:
        if allocation.component in COMPONENTS:
            where = allocation.buffer if allocation.component == "weights" else allocation.device
            key = (COMPONENTS[allocation.component], where)
            size, count = figures.get(key, (0.0, 0))
            figures[key] = (size + allocation.reserved_bytes / MIB, count + 1)
    return figures


def differences(plan: MemoryPlan, log: EngineLog) -> list[str]:
    """Where plan and log disagree, buffers that only one of them has included."""
    mine, truth = planned(plan), logged(log)
    wrong = []
    for kind, where in sorted(mine.keys() | truth.keys()):
        here, there = mine.get((kind, where)), truth.get((kind, where))
        if not here or not there or abs(here[0] - there[0]) > there[1] * LOGGED_DIGIT / 2 + 1e-5:
            wrong.append(f"{kind} on {where}: {here and here[0]} MiB planned, {there and there[0]} logged")
    return wrong


def launches(first: str, second: str) -> dict[str, Launch]:
    """A table of flags. Flash attention is written out, since `auto` comes to nothing with two RPC servers."""
    base = Launch(ctx_size=1024, parallel=2, flash_attn="on")
    changes: dict[str, dict[str, object]] = {
        "default": {},
        **{f"-ngl {count}": {"n_gpu_layers": count} for count in (0, 1, 2, 5, 8, 9, 10, 99)},
        "-ts 3,1": {"tensor_split": (3, 1)},
        "-ts 1,3": {"tensor_split": (1, 3)},
        "-ts 1,0": {"tensor_split": (1, 0)},
        "-ts 0,1": {"tensor_split": (0, 1)},
        "-ts 1": {"tensor_split": (1,)},
        "-ts 0,0": {"tensor_split": (0, 0)},
        "-ts .3,.7 -ngl 6": {"tensor_split": (0.3, 0.7), "n_gpu_layers": 6},
        # Shares that double precision would round to the other side of a layer.
        "-ts .3,.6": {"tensor_split": (0.3, 0.6)},
        "-ts .6,2.1": {"tensor_split": (0.6, 2.1)},
        "-ts 2.7,.3": {"tensor_split": (2.7, 0.3)},
        "-sm none": {"split_mode": "none"},
        "-sm none -mg 1": {"split_mode": "none", "main_gpu": 1},
        "-sm none -mg 1 -ngl 4": {"split_mode": "none", "main_gpu": 1, "n_gpu_layers": 4},
        "-dev second": {"device": second},
        "-dev second,first -ts 3,1": {"device": f"{second},{first}", "tensor_split": (3, 1)},
        "-dev none": {"device": "none"},
        "-dev none -ngl 7": {"device": "none", "n_gpu_layers": 7},
        "-ot ffn=CPU": {"override_tensor": (("ffn", "CPU"),)},
        "-ot first match": {
            "override_tensor": ((r"blk\.1\.", second), ("ffn_up", first), ("ffn_up", "CPU")),
        },
        "-ot by its own name": {"override_tensor": (("^output", second), ("token_embd", first))},
        "-ot token_embd": {"override_tensor": (("token_embd", second),)},
        "-ot output=CPU": {"override_tensor": (("output", "CPU"),)},
        "-ot .*=CPU": {"override_tensor": ((".*", "CPU"),)},
        "-ot all but": {"override_tensor": (("^(?!rope_f|token_embd_norm|position_embd)", first),)},
        "-ot norms": {"override_tensor": (("rope_freqs", second), ("norm", second))},
        "--cpu-moe": {"cpu_moe": True},
        "--n-cpu-moe 3": {"n_cpu_moe": 3},
        "--n-cpu-moe 1 -ngl 4": {"n_cpu_moe": 1, "n_gpu_layers": 4},
        "--n-cpu-ffn 3": {"n_cpu_ffn": 3},
        "--n-cpu-ffn 99": {"n_cpu_ffn": 99},
        "-ot before --cpu-moe": {"cpu_moe": True, "n_cpu_ffn": 2, "override_tensor": (("exps", second),)},
        "--no-kv-offload": {"kv_offload": False},
        "--no-kv-offload -ngl 4": {"kv_offload": False, "n_gpu_layers": 4},
        "--no-repack": {"repack": False},
        "--no-repack -ngl 4 --n-cpu-moe 99": {"repack": False, "n_gpu_layers": 4, "n_cpu_moe": 99},
        "--load-mode none": {"load_mode": "none"},
        "--load-mode none -ngl 4": {"load_mode": "none", "n_gpu_layers": 4},
        "--load-mode none -dev none": {"load_mode": "none", "device": "none"},
        "--load-mode mmap -dev none": {"load_mode": "mmap", "device": "none", "repack": False},
        "-ctk q8_0 -ctv q4_0 -ngl 6": {"cache_type_k": "q8_0", "cache_type_v": "q4_0", "n_gpu_layers": 6},
        "-kvu -ngl 7": {"kv_unified": True, "n_gpu_layers": 7},
        "-fa off -ngl 6": {"flash_attn": "off", "n_gpu_layers": 6},
    }
    return {name: replace(base, **change) for name, change in changes.items()}  # type: ignore[arg-type]


MIXED = {
    "token_embd": "Q8_0", "ffn_down": "Q4_0", "attn_q": "Q4_K", "ffn_up": "IQ4_NL", "^output|attn_output": "Q4_0",
    "attn_k": "Q2_K", "": "Q5_K",
}  # fmt: skip
"""Types that are rearranged on some processors and types that are not, side by side."""

MODELS: dict[str, dict[str, object]] = {
    # Dense, with and without tensors that belong to no block or to every block.
    "llama-dense": {"layers": 8},
    "gpt2-dense": {"layers": 8},
    "bloom-dense": {"layers": 8, "tied": True},
    "phi3-dense": {"layers": 9, "matrices": MIXED},
    # Tied embeddings: the output matrix is a copy, or the table itself.
    "gemma3-dense": {"layers": 9, "matrices": MIXED, "tied": True},
    # Mixtures of experts; some end in a block that predicts ahead.
    "llama-moe": {"layers": 8, "matrices": {"": "Q4_0"}},
    "qwen3moe-moe": {"layers": 9, "matrices": MIXED, "tied": True},
    "glm4moe-moe": {"layers": 8, "matrices": {"": "Q4_0"}, "ahead": True},
    "glm-dsa-moe": {"layers": 3, "ahead": True},
    "hy_v3-moe": {"layers": 6, "ahead": True},
    # Latent attention.
    "deepseek2-moe": {"layers": 8, "matrices": {"": "Q4_0"}},
    # Hybrids, and a model with states alone.
    "qwen3next-moe": {"layers": 9, "matrices": MIXED, "tied": True},
    "lfm2-dense": {"layers": 8, "matrices": {"": "Q4_0"}, "tied": True},
    "jamba-dense": {"layers": 9},
    "falcon-h1-dense": {"layers": 8},
    "mamba2-dense": {"layers": 8},
}


def disagreements(devices: Oracle, path: Path, table: dict[str, Launch]) -> dict[str, list[str]]:
    """By launch, what the plan says differently from llama.cpp's log."""
    model = Model.open(path)
    hardware = devices.hardware(Hardware.detect().cpu_features)
    answers = devices.loads(path, table.values())
    found: dict[str, list[str]] = {}
    for (name, launch), answer in zip(table.items(), answers, strict=True):
        plan = predict(model, launch, hardware)
        if answer.refusal and not plan.refusal:
            found[name] = [answer.refusal]
        elif not answer.refusal and (wrong := differences(plan, answer.log)):
            found[name] = wrong
    return found


def placement_cases(folder: Path) -> Iterator[Case]:
    """Every model under every flag: how many buffers the plan and the log disagree on, which should be none."""
    with Oracle(devices=2) as oracle, tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        table = launches(*oracle.device_names)
        for model, growth in MODELS.items():
            path = grow(ghost(folder, model, scratch), scratch / "grown.gguf", **growth)  # type: ignore[arg-type]
            wrong = disagreements(oracle, path, table)
            for flags in table:
                differing = Figure(name="differing buffers", expected=0, predicted=len(wrong.get(flags, ())))
                yield Case(name=f"{model} {flags}", figures=(differing,))
