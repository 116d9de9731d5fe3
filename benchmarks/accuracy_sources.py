"""What predictions are held against: sources of truth, each as cases with what was expected and predicted.

`python -m benchmarks.accuracy` prints them, and the tests assert the same. Most lies in `shared/` beside the
checkout (or where the variable PLANNER_SHARED says) and need not be there; what a llama-server reserved for
two real models is part of the repository.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.evidence import CARD, MODELS, OUT_OF_REACH, RUNS, Run
from planner.hardware import Hardware
from planner.launch import Launch, resolve_context
from planner.memory import predict
from planner.memory.draft import draft_caches
from planner.memory.kv import KvCache, kv_caches, kv_refusal, state_bytes
from planner.model import Model
from planner.model.gguf import GgufHeader
from planner.units import MIB

ROOT = Path(__file__).parents[1]
SERVER_RESERVED = ROOT / "tests" / "data" / "server_compute.csv"
_PRINTED = 0.005 * MIB * 1.000001
"""How far a figure printed in MiB with two decimals may be from the truth."""
_SIZE = re.compile(r"size =\s*([\d.]+) MiB")
_ASSERTED = re.compile(r"(\w+)=[\d.]+ vs ([\d.]+) OK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure, in bytes unless its name says otherwise."""

    name: str
    expected: float
    predicted: float
    rounding: float = 0.0
    """How far the expected figure may be off because it was printed rounded."""

    @property
    def exact(self) -> bool:
        """Whether nothing but rounding lies between them."""
        return abs(self.predicted - self.expected) <= self.rounding

    @property
    def deviation(self) -> float:
        """Relative to what was expected; 0 within rounding."""
        return 0.0 if self.exact else abs(self.predicted / self.expected - 1) if self.expected else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One launch of one model."""

    name: str
    figures: tuple[Figure, ...] = ()
    refused: bool = False
    """Whether llama.cpp refused it."""
    refusal: str = ""
    """Why we say that it would."""

    @property
    def exact(self) -> bool:
        """Whether every figure is exact, and what was refused would have been."""
        return bool(self.refusal) == self.refused and all(figure.exact for figure in self.figures)

    @property
    def deviation(self) -> float:
        """That of the figure which is furthest off."""
        return max((figure.deviation for figure in self.figures), default=0.0)

    def __str__(self) -> str:
        """What is wrong with it."""
        if bool(self.refusal) != self.refused:
            theirs = "refused" if self.refused else "took"
            return f"{self.name}: llama.cpp {theirs} it, we say: {self.refusal or 'it runs'}"
        wrong = (figure for figure in self.figures if not figure.exact)
        return f"{self.name}: " + ", ".join(
            f"{figure.name} is {figure.predicted:,.0f} and not {figure.expected:,.0f}" for figure in wrong
        )


def find_shared() -> Path | None:
    """The reference data; None where there are none."""
    folder = Path(os.environ.get("PLANNER_SHARED") or ROOT.parent / "shared")
    return folder if folder.is_dir() else None


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def launch_of(row: Mapping[str, str]) -> Launch:
    """The launch that the columns of a table name."""
    return Launch(
        ctx_size=int(row["ctx_size"]),
        parallel=int(row["parallel"]),
        kv_unified=row["kv_unified"] == "1",
        cache_type_k=row["cache_type_k"],  # type: ignore[arg-type]
        cache_type_v=row["cache_type_v"],  # type: ignore[arg-type]
        flash_attn=row["flash_attn"],  # type: ignore[arg-type]
        ubatch_size=int(row.get("ubatch_size") or row["ubatch"]),
        swa_full=row["swa_full"] == "1",
        embeddings=row.get("embeddings") == "1",
    )


def full_size_launch(case: Mapping[str, Any]) -> Launch:
    """The launch of a case of `fullsize/truth.csv`, which speaks as the library does."""
    return Launch(
        ctx_size=case["n_ctx"],
        parallel=case["n_seq_max"],
        kv_unified=case.get("kv_unified", False),
        cache_type_k=case.get("type_k", "f16"),
        cache_type_v=case.get("type_v", "f16"),
        flash_attn=case.get("fa", "auto"),
        swa_full=case.get("swa_full", True),
    )


def full_size_models(folder: Path) -> dict[str, Model]:
    """The models of `fullsize/`, by name."""
    metadata = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    return {name: model_from_metadata(name, keys) for name, keys in metadata.items()}


def architecture_rows(folder: Path) -> Iterator[tuple[str, dict[str, str], Model, Launch]]:
    """The rows of `archs/truth.csv`: a name for each, the row, its model and its launch."""
    models: dict[str, Model] = {}
    for row in _rows(folder / "truth.csv"):
        file = row["file"]
        if file not in models:
            models[file] = Model.open(folder / file, header_only=True)
        settings = " ".join(f"{key}={row[key]}" for key in list(row)[1:9])
        yield f"{file} {settings}", row, models[file], launch_of(row)


def architecture_cases(folder: Path) -> Iterator[Case]:
    """`archs/`: small models of 122 architectures under 8 settings each."""
    for name, row, model, launch in architecture_rows(folder):
        yield _architecture_case(name, model, launch, row)


def _architecture_case(name: str, model: Model, launch: Launch, row: Mapping[str, str]) -> Case:
    refused = row["context"] == "0"
    refusal = kv_refusal(model.hyperparameters, model.layout, launch)
    if refused or refusal:
        return Case(name=name, refused=refused, refusal=refusal)
    context = resolve_context(launch, model.hyperparameters.n_ctx_train)
    states = [_SIZE.search(line) for key in ("state_lines", "other_lines") for line in json.loads(row[key])]
    printed = [float(state[1]) for state in states if state]
    figures = [
        Figure(
            name="state",
            expected=sum(printed) * MIB,
            predicted=sum(state_bytes(state, context) for state in model.layout.states),
            rounding=_PRINTED * len(printed),
        ),
        *_cache_figures(kv_caches(model.layout, launch, context), json.loads(row["kv"])),
    ]
    return Case(name=name, figures=tuple(figures))


def _cache_figures(ours: Iterable[KvCache], theirs: list[dict[str, Any]]) -> Iterator[Figure]:
    caches = sorted((c for c in ours if c.layout.layers), key=lambda c: (c.cells, c.k_bytes, c.v_bytes))
    lines = sorted((k for k in theirs if k["layers"]), key=lambda k: (k["cells"], k["k_mib"], k["v_mib"]))
    yield Figure(name="caches", expected=len(lines), predicted=len(caches))
    for cache, line in zip(caches, lines, strict=False):
        name = cache.name
        yield Figure(name=f"{name} cells", expected=line["cells"], predicted=cache.cells)
        yield Figure(name=f"{name} layers", expected=line["layers"], predicted=len(cache.layout.layers))
        yield Figure(name=f"{name} K", expected=line["k_mib"] * MIB, predicted=cache.k_bytes, rounding=_PRINTED)
        yield Figure(name=f"{name} V", expected=line["v_mib"] * MIB, predicted=cache.v_bytes, rounding=_PRINTED)


def full_size_cases(folder: Path) -> Iterator[Case]:
    """`fullsize/`: context bytes of 26 full-size models under 7 settings each, and of MTP contexts."""
    models = full_size_models(folder)
    for row in _rows(folder / "truth.csv"):
        model, case = models[row["model"]], json.loads(row["case"])
        ahead = case.get("ctx_type") == 1
        launch = replace(
            full_size_launch(case),
            spec_type="draft-mtp" if ahead or case.get("n_rs_seq") else "none",
            spec_draft_n_max=case.get("n_rs_seq", 3),
        )
        name = f"{row['model']} {row['case']}"
        refusal = kv_refusal(model.hyperparameters, model.layout, launch)
        if row["rejected"] or refusal:
            yield Case(name=name, refused=bool(row["rejected"]), refusal=refusal)
            continue
        ours = figures_of(model, launch)
        figure = Figure(
            name="context",
            expected=int(row["context_bytes"]),
            predicted=ours["ahead" if ahead else "context"],
        )
        yield Case(name=name, figures=(figure,))


def model_from_metadata(name: str, keys: Mapping[str, Any]) -> Model:
    """A model without tensors."""
    metadata = {key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()}
    header = GgufHeader(version=3, metadata=metadata, tensors=(), alignment=32, data_offset=0)
    return Model(path=Path(name), header=header)


def figures_of(model: Model, launch: Launch, cards: int = 0) -> dict[str, int]:
    """Our figures for a launch, in bytes: everything that a public log prints of a context."""
    context = resolve_context(launch, model.hyperparameters.n_ctx_train)
    caches = kv_caches(model.layout, launch, context)
    plan = predict(model, launch, Hardware.simulate(ram=CARD, vram=(CARD,) * cards))
    sizes = {
        "keys": sum(cache.k_bytes for cache in caches),
        "values": sum(cache.v_bytes for cache in caches),
        "swa": sum(cache.total_bytes for cache in caches if cache.windowed),
        "full": sum(cache.total_bytes for cache in caches if not cache.windowed),
        "kv": sum(cache.total_bytes for cache in caches),
        "state": sum(state_bytes(state, context) for state in model.layout.states),
        "ahead": sum(cache.total_bytes for cache in draft_caches(model.layout, launch, context)),
        "output": plan.bytes(component="output"),
    }
    on_cards = {f"kv@CUDA{card}": plan.bytes(component="kv", device=f"CUDA{card}") for card in range(cards)}
    return {**sizes, **on_cards, "context": sizes["kv"] + sizes["state"]}


def log_cases(folder: Path) -> Iterator[Case]:
    """`evidence/logs.csv`: what public logs printed and the row says can be asserted."""
    runs: dict[str, list[Run]] = {}
    for run in RUNS:
        runs.setdefault(run.row, []).append(run)
    for row in _rows(folder / "logs.csv"):
        asserted = {name: float(value) for name, value in _ASSERTED.findall(row["recomputed"])}
        if not asserted or row["id"] in OUT_OF_REACH:
            continue
        figures = [figure for run in runs.get(row["id"], ()) for figure in _log_figures(run, asserted)]
        figures += [Figure(name=name, expected=value, predicted=0) for name, value in asserted.items()]
        yield Case(name=f"{row['id']} {row['model']}", figures=tuple(figures))


def _log_figures(run: Run, asserted: dict[str, float]) -> Iterator[Figure]:
    """The figures of one run, taken out of what the row asserts."""
    ours = figures_of(MODELS[run.model], run.launch, run.cards)
    for theirs, name in run.figures.items():
        yield Figure(name=theirs, expected=asserted.pop(theirs) * MIB, predicted=ours[name], rounding=_PRINTED)


def server_cases(models: Mapping[str, Model]) -> Iterator[Case]:
    """What a llama-server reserved for two real models: caches and output."""
    for row, model, launch in server_launches(models):
        refusal = kv_refusal(model.hyperparameters, model.layout, launch)
        if refusal or not row["compute_mib"]:
            yield Case(name=server_name(row), refused=not row["compute_mib"], refusal=refusal)
            continue
        ours = figures_of(model, launch)
        printed = [float(size) for size in row["kv_mib"].split()]
        yield Case(
            name=server_name(row),
            figures=(
                Figure(
                    name="kv",
                    expected=sum(printed) * MIB,
                    predicted=ours["kv"],
                    rounding=_PRINTED * len(printed),
                ),
                Figure(
                    name="output",
                    expected=float(row["output_mib"]) * MIB,
                    predicted=ours["output"],
                    rounding=_PRINTED,
                ),
            ),
        )


def server_launches(models: Mapping[str, Model]) -> Iterator[tuple[dict[str, str], Model, Launch]]:
    """The rows of `tests/data/server_compute.csv`, with the model and the launch of each."""
    for row in _rows(SERVER_RESERVED):
        yield row, models[row["model"]], launch_of(row)


def server_name(row: Mapping[str, str]) -> str:
    """The settings of such a row."""
    return " ".join([row["model"], *(f"{key}={row[key]}" for key in list(row)[1:10])])


def unasserted_rows(folder: Path) -> list[str]:
    """Rows of the logs whose asserted figures no run stands for and nothing excuses."""
    known = {run.row for run in RUNS} | set(OUT_OF_REACH)
    rows = _rows(folder / "logs.csv")
    return [row["id"] for row in rows if _ASSERTED.search(row["recomputed"]) and row["id"] not in known]
