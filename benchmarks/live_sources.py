"""Caches, state and output of launches that no file lists, held against the llama.cpp that is installed.

Every header of `shared/archs` is opened by llama-cpp-python without allocating anything, and asked about random
launches (the same every time for a seed).
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.accuracy_sources import Case, Figure
from benchmarks.ghosts import ghost
from benchmarks.oracle import Answer, Oracle
from planner import Launch, Model
from planner.launch import CACHE_TYPES, resolve_context
from planner.memory.kv import kv_caches, kv_refusal, state_bytes
from planner.units import MIB

OTHER_LIBRARY = {
    "kimi-linear-moe": "llama.cpp aborts while it builds the graph of this model",
    "qwen35-dense": "llama-cpp-python 0.3.36 cannot open its MTP tensors",
    "qwen4exp-moe": "the indexer's row is half as long in llama-cpp-python 0.3.36 as in llama.cpp b11434",
}
"""Headers that the installed library cannot answer for, and why."""

_PRINTED = 0.005 * MIB * 1.000001


def random_launches(count: int, seed: str) -> list[Launch]:
    """Different launches, the same every time."""
    choose = random.Random(seed)
    launches = []
    for _ in range(count):
        types = choose.choices(CACHE_TYPES, k=2)
        same = choose.random() < 0.5
        launches.append(
            Launch(
                ctx_size=choose.randrange(1, 100_000),
                parallel=choose.randrange(1, 9),
                kv_unified=choose.random() < 0.5,
                cache_type_k=types[0],
                cache_type_v=types[0 if same else 1],
                flash_attn=choose.choice(("on", "on", "auto", "off")),
                batch_size=choose.choice((256, 512, 2048)),
                ubatch_size=choose.choice((64, 128, 512, 1024)),
                swa_full=choose.random() < 0.2,
            )
        )
    return launches


def live_cases(folder: Path, per_header: int, seed: int = 0) -> Iterator[Case]:
    """Random launches of every header."""
    with Oracle() as oracle, tempfile.TemporaryDirectory() as scratch:
        for header in sorted(folder.glob("archs/*.gguf")):
            if header.stem not in OTHER_LIBRARY:
                yield from _header_cases(oracle, ghost(folder, header.stem, Path(scratch)), per_header, seed)


def _header_cases(oracle: Oracle, path: Path, per_header: int, seed: int) -> Iterator[Case]:
    model = Model.open(path)
    launches = random_launches(per_header, f"{seed} {path.stem}")
    for launch, answer in zip(launches, oracle.contexts(path, launches), strict=True):
        yield _case(f"{path.stem} {settings_of(launch)}", model, launch, answer)


def settings_of(launch: Launch) -> str:
    """What differs from the defaults."""
    unset = asdict(Launch())
    return " ".join(f"{name}={value}" for name, value in asdict(launch).items() if value != unset[name])


def _case(name: str, model: Model, launch: Launch, answer: Answer) -> Case:
    refusal = kv_refusal(model.hyperparameters, model.layout, launch)
    if refusal or answer.refusal:
        return Case(name=f"{name} {answer.refusal}", refused=bool(answer.refusal), refusal=refusal)
    context = resolve_context(launch, model.hyperparameters.n_ctx_train)
    caches = [cache for cache in kv_caches(model.layout, launch, context) if cache.layout.layers]
    ours = sorted((c.cells, len(c.layout.layers), c.k_bytes, c.v_bytes) for c in caches)
    theirs = sorted((c.cells, c.layers, c.k_mib, c.v_mib) for c in answer.caches if c.layers)
    figures = [Figure(name="caches", expected=len(theirs), predicted=len(ours))]
    for mine, logged in zip(ours, theirs, strict=False):
        figures.append(Figure(name="cells", expected=logged[0], predicted=mine[0]))
        figures.append(Figure(name="layers", expected=logged[1], predicted=mine[1]))
        figures.append(Figure(name="K", expected=logged[2] * MIB, predicted=mine[2], rounding=_PRINTED))
        figures.append(Figure(name="V", expected=logged[3] * MIB, predicted=mine[3], rounding=_PRINTED))
    state = sum(state_bytes(state, context) for state in model.layout.states)
    rounding = _PRINTED * max(1, len(model.layout.states))
    figures.append(Figure(name="state", expected=answer.state_mib * MIB, predicted=state, rounding=rounding))
    return Case(name=name, figures=tuple(figures))
