"""Compute buffers that llama.cpp reserved, held against the closed form and the range that it names.

`python -m benchmarks.accuracy` prints a line for each source, and the tests bound them. A source may leave
settings to the library (512 output rows) where llama-server has its own (one per slot): then the formula is
asked for the same.
"""

from __future__ import annotations

import csv
import json
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.accuracy_sources import (
    architecture_rows,
    full_size_launch,
    full_size_models,
    model_from_metadata,
    server_launches,
    server_name,
)
from benchmarks.evidence import CARD, MODELS
from benchmarks.ghosts import ghost, grow
from benchmarks.live_sources import OTHER_LIBRARY, random_launches, settings_of
from benchmarks.oracle import AVAILABLE, SERVER_AVAILABLE, Answer, Oracle
from benchmarks.placement_sources import launches as placement_launches
from planner.hardware import HOST_POOL, Device, Hardware, Pool
from planner.launch import Launch, resolve_context
from planner.memory.compute import plan_compute
from planner.memory.graph import graph_sizes
from planner.memory.kv import kv_caches, kv_refusal
from planner.memory.placement import place
from planner.model import Model
from planner.units import MIB

LIBRARY_OUTPUTS = 512
"""Rows of logits that the library reserves where nobody says how many are needed."""
SMALL_BYTES = 2 * MIB
"""What an estimate may be off by, however small the buffer is."""
_PRINTED = 0.005 * MIB * 1.000001
_THOUSANDTH = 0.0005 * MIB * 1.000001


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One compute buffer: what llama.cpp reserved, and what was predicted with its range. Bytes."""

    name: str
    architecture: str
    expected: float
    predicted: int
    low: int
    high: int
    rounding: float = 0.0
    """How far the expected figure may be off because it was printed rounded."""

    @property
    def deviation(self) -> float:
        """Signed, relative to what was reserved; 0 within rounding."""
        off = self.predicted - self.expected
        return 0.0 if abs(off) <= self.rounding else off / self.expected

    @property
    def near(self) -> bool:
        """Whether it is within 5 % or 2 MiB."""
        return abs(self.predicted - self.expected) <= max(0.05 * self.expected, SMALL_BYTES)

    @property
    def in_range(self) -> bool:
        """Whether the range held."""
        return self.low - self.rounding <= self.expected <= self.high + self.rounding

    def __str__(self) -> str:
        """The figures in MiB."""
        return (
            f"{self.name}: {self.expected / MIB:,.2f} MiB reserved, {self.predicted / MIB:,.2f} predicted "
            f"({self.low / MIB:,.2f} to {self.high / MIB:,.2f}), {self.deviation:+.1%}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How near the estimates of one source are."""

    count: int
    median: float
    percentile_95: float
    worst: float
    off_mib: float
    """The 95th percentile in MiB, whatever the size of the buffer."""
    near: float
    """The share within 5 % or 2 MiB."""
    in_range: float
    """The share whose range held."""


def summarise(estimates: Sequence[Estimate]) -> Summary:
    """Of at least one estimate."""
    deviations = sorted(abs(estimate.deviation) for estimate in estimates)
    count = len(deviations)
    off = sorted(abs(estimate.predicted - estimate.expected) for estimate in estimates)
    rank_95 = min(count - 1, int(0.95 * count))
    return Summary(
        count=count,
        median=statistics.median(deviations),
        percentile_95=deviations[rank_95],
        off_mib=off[rank_95] / MIB,
        worst=deviations[-1],
        near=sum(estimate.near for estimate in estimates) / count,
        in_range=sum(estimate.in_range for estimate in estimates) / count,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """What llama.cpp reserved for one launch."""

    name: str
    model: Model
    launch: Launch
    hardware: Hardware
    expected: Mapping[str, float]
    """Bytes per device."""
    rounding: float = 0.0
    outputs: int | None = None
    """Rows of logits; None for as many as llama-server reserves."""
    mixed: bool = True
    """Whether the build lets one batch hold tokens and embeddings, as llama-server's does (#29622)."""

    def estimates(self) -> Iterator[Estimate]:
        """One for each compute buffer, also of models whose file has no tensors."""
        shape, layout = self.model.hyperparameters, self.model.layout
        context = resolve_context(self.launch, shape.n_ctx_train)
        caches = kv_caches(layout, self.launch, context)
        graph = replace(self.model.graph, mixed=self.model.graph.mixed and self.mixed)
        sizes = graph_sizes(shape, layout, self.launch, context, caches, graph=graph, outputs=self.outputs)
        placement = place(shape.n_layer_all, self.launch, self.hardware)
        for allocation in plan_compute(sizes, sizes, placement, self.launch, hardware=self.hardware):
            if self.expected.get(allocation.device):
                yield Estimate(
                    name=f"{self.name} {allocation.device}",
                    architecture=self.model.architecture,
                    expected=self.expected[allocation.device],
                    predicted=allocation.reserved_bytes,
                    low=allocation.low_bytes or 0,
                    high=allocation.high_bytes or 0,
                    rounding=self.rounding,
                )


def estimates(reserved: Iterable[Reserved]) -> tuple[Estimate, ...]:
    """The estimates of one source."""
    return tuple(estimate for one in reserved for estimate in one.estimates())


def machine(*devices: str) -> Hardware:
    """A machine with so much memory everywhere that nothing depends on it."""
    return Hardware(
        pools=tuple(
            Pool(name=name, total_bytes=CARD, usable_bytes=CARD, source="made") for name in (*devices, HOST_POOL)
        ),
        devices=(*(Device(name=name, pool=name) for name in devices), Device(name="CPU", pool=HOST_POOL)),
        cpu_features=frozenset(),
    )


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def server_compute(models: Mapping[str, Model]) -> Iterator[Reserved]:
    """What a llama-server reserved for two real models, on the CPU."""
    for row, model, launch in server_launches(models):
        if row["compute_mib"]:
            yield Reserved(
                name=server_name(row),
                model=model,
                launch=launch,
                hardware=machine(),
                expected={"CPU": float(row["compute_mib"]) * MIB},
                rounding=_PRINTED,
            )


def one_device_compute(folder: Path) -> Iterator[Reserved]:
    """`fullsize/compute_one_device.csv`: everything on one RPC device, one row of logits."""
    models = full_size_models(folder)
    for row in _rows(folder / "compute_one_device.csv"):
        model = models[row["model"]]
        # The library keeps whole windows.
        launch = Launch(
            ctx_size=int(row["n_ctx"]),
            parallel=1,
            flash_attn=row["flash_attn"],  # type: ignore[arg-type]
            swa_full=True,
        )
        expected = {
            "RPC0": float(row["device_compute_mib"]) * MIB,
            "CPU": float(row["host_compute_mib"]) * MIB,
        }
        name = f"{row['model']} c={row['n_ctx']} fa={row['flash_attn']}"
        yield Reserved(
            name=name, model=model, launch=launch, hardware=machine("RPC0"), expected=expected, rounding=_THOUSANDTH
        )


def full_size_compute(folder: Path) -> Iterator[Reserved]:
    """`fullsize/truth.csv`: on the CPU, with the logits of a whole ubatch."""
    models = full_size_models(folder)
    for row in _rows(folder / "truth.csv"):
        case = json.loads(row["case"])
        if row["compute_bytes"] in ("", "null") or "ctx_type" in case:
            continue
        model = models[row["model"]]
        yield Reserved(
            name=f"{row['model']} {row['case']}",
            model=model,
            launch=full_size_launch(case),
            hardware=machine(),
            expected=json.loads(row["compute_bytes"]),
            outputs=LIBRARY_OUTPUTS,
        )


def architecture_compute(folder: Path) -> Iterator[Reserved]:
    """`archs/truth.csv`: tiny models of 122 architectures, in a dry run (the first of three passes alone)."""
    for name, row, model, launch in architecture_rows(folder):
        if row["context"] == "0" or not row["compute_mib"]:
            continue
        expected = {device: size * MIB for device, size in json.loads(row["compute_mib"]).items()}
        yield Reserved(
            name=name,
            model=model,
            launch=launch,
            hardware=machine(),
            expected=expected,
            rounding=_PRINTED,
        )


def live_compute(folder: Path, per_header: int, seed: int = 1) -> Iterator[Reserved]:
    """Random launches of every header, put to llama.cpp without allocating: to llama-server's build if it is here."""
    with Oracle(server=SERVER_AVAILABLE) as oracle, tempfile.TemporaryDirectory() as scratch:
        for header in sorted(folder.glob("archs/*.gguf")):
            if header.stem in OTHER_LIBRARY and not SERVER_AVAILABLE:
                continue
            path = ghost(folder, header.stem, Path(scratch))
            model = Model.open(path)
            launches = random_launches(per_header, f"{seed} {path.stem}")
            for launch, answer in zip(launches, oracle.contexts(path, launches), strict=True):
                refused = answer.refusal or kv_refusal(model.hyperparameters, model.layout, launch)
                if not refused and answer.compute_mib:
                    yield Reserved(
                        name=f"{path.stem} {settings_of(launch)}",
                        model=model,
                        launch=launch,
                        hardware=machine(),
                        expected={"CPU": answer.compute_mib * MIB},
                        rounding=_PRINTED,
                        mixed=SERVER_AVAILABLE,
                    )


RECORDED = Path(__file__).with_name("recorded.csv")
"""Random launches of full-size models, as llama-server's build reserved them on the processor, on one device and on
two, whole and in part.

The devices are stand-ins: a ggml back end that supports every operation, hands out address space and computes
nothing, with the alignment, the events and the copies of RPC. It reserves to the byte what `compute_one_device.csv`
and the log of two RPC devices say. Fully offloaded launches on two devices were loaded, the others are dry runs:
a dry run of several devices reserves a hidden state too many on each of them but the first, which a load does not.
"""


def recorded_compute(folder: Path, *, devices: bool) -> Iterator[Reserved]:
    """`recorded.csv`: the processor alone, or with devices."""
    models = full_size_models(folder)
    for row in _rows(RECORDED):
        if bool(int(row["devices"])) == devices:
            figures = {device: size * MIB for device, size in json.loads(row["compute_mib"]).items()}
            yield Reserved(
                name=f"{row['model']} {row['launch']}",
                model=models[row["model"]],
                launch=_launch(json.loads(row["launch"])),
                hardware=machine(*(f"RPC{index}" for index in range(int(row["devices"])))),
                expected=figures,
                rounding=_PRINTED,
            )


def _launch(settings: dict[str, Any]) -> Launch:
    settings["tensor_split"] = tuple(settings.get("tensor_split", ()))
    return Launch(**settings)


def log_compute(models: Mapping[str, Model]) -> Iterator[Reserved]:
    """Logs of llama-server b11434 with two real models and loopback devices, and the public logs of builds with
    the same graph whose launch is known.
    """
    gemma = next(model for name, model in models.items() if name.startswith("gemma"))
    smollm = next(model for name, model in models.items() if not name.startswith("gemma"))
    one_slot = Launch(ctx_size=4096, parallel=1, n_gpu_layers=10)
    two_slots = Launch(ctx_size=8192, parallel=2, tensor_split=(1, 1))
    mtp = Launch(ctx_size=8192, ubatch_size=2048, spec_type="draft-mtp", spec_draft_n_max=2)
    for name, model, launch, figures in (
        ("b11434-lv4-two-devices.log", gemma, two_slots, {"RPC0": 52.84, "RPC1": 41.57, "CPU": 32.61}),
        ("b11434-lv4-partial-offload.log", smollm, one_slot, {"RPC0": 15.26, "CPU": 18.64}),
        ("b11434-lv4-q8-auto-np.log", gemma, Launch(ctx_size=8192).with_cache_type("q8_0"), {"CPU": 29.31}),
        ("GT18", _with_feed_forward("qwen3-4b", 9728), Launch(ctx_size=8192), {"CUDA0": 85.01, "CPU": 28.02}),
        ("GT02", _with_feed_forward("qwen3.8-27b-mtp", 17408), mtp, {"Vulkan0": 568.53, "CPU": 112.07}),
    ):
        yield Reserved(
            name=name,
            model=model,
            launch=launch,
            hardware=machine(*(device for device in figures if device != "CPU")),
            expected={device: size * MIB for device, size in figures.items()},
            rounding=_PRINTED,
            mixed=name not in _BEFORE_MIXED,
        )


_BEFORE_MIXED = ("GT02",)
"""Logs of builds before b11400 (b9849), whose batches hold tokens or embeddings and not both."""


def _with_feed_forward(name: str, width: int) -> Model:
    metadata = MODELS[name].metadata
    key = f"{MODELS[name].architecture}.feed_forward_length"
    return model_from_metadata(name, {**metadata, key: width})


DEVICE_MODELS = ("llama-dense", "gemma2-dense", "qwen3moe-moe", "deepseek2-moe", "qwen3next-moe")
"""Headers for real loads on two devices."""


def two_device_compute(folder: Path, names: Iterable[str] = DEVICE_MODELS) -> Iterator[Reserved]:
    """Real loads with two RPC servers of this processor in place of accelerators, under every flag that places."""
    with Oracle(devices=2) as oracle, tempfile.TemporaryDirectory() as scratch:
        hardware = oracle.hardware(frozenset())
        for name in names:
            path = grow(ghost(folder, name, Path(scratch)), Path(scratch) / f"{name}-8.gguf", layers=8)
            model = Model.open(path)
            table = placement_launches(*oracle.device_names)
            for (flags, launch), answer in zip(table.items(), oracle.loads(path, table.values()), strict=True):
                if not answer.refusal:
                    yield Reserved(
                        name=f"{name} {flags}",
                        model=model,
                        launch=launch,
                        hardware=hardware,
                        expected=_logged(answer),
                        rounding=_PRINTED,
                        mixed=False,
                    )


def _logged(answer: Answer) -> dict[str, float]:
    sizes: dict[str, float] = {}
    for buffer in answer.log.buffers:
        if buffer.kind == "compute":
            sizes[buffer.device] = sizes.get(buffer.device, 0) + buffer.size_bytes
    return sizes


def compute_sources(
    models: Mapping[str, Model], shared: Path | None, per_header: int
) -> Iterator[tuple[str, Iterable[Reserved]]]:
    """Every source that is here, by name."""
    yield "llama-server, two real models, CPU", server_compute(models)
    yield "logs whose launch is known", log_compute(models)
    if shared is None:
        return
    yield "fullsize/compute_one_device.csv", one_device_compute(shared / "fullsize")
    yield "fullsize/truth.csv, 512 rows of logits", full_size_compute(shared / "fullsize")
    yield "recorded.csv: random launches at full size, CPU", recorded_compute(shared / "fullsize", devices=False)
    yield "recorded.csv: one device and two", recorded_compute(shared / "fullsize", devices=True)
    yield "archs/truth.csv (two layers of 256)", architecture_compute(shared / "archs")
    if AVAILABLE:
        yield f"llama.cpp, now: {per_header} random launches of every header", live_compute(shared, per_header)
        yield "llama.cpp, now: two devices, every flag", two_device_compute(shared)
