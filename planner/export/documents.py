"""What the program knows as one JSON document: sizes are bytes and their names end in `_bytes`.

Documents carry `schema_version`; within a version, names are added and never changed or taken away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from planner.engine.library import AnyEngine
from planner.errors import ModelError
from planner.export.command import shell_command
from planner.fit import Grid, Recommendation
from planner.hardware import Hardware
from planner.launch import Launch
from planner.measure import Measurement, Sample, Soak
from planner.memory import Allocation, MemoryPlan
from planner.model import Model
from planner.model.gguf import LongArray, MetadataValue
from planner.model.hyperparameters import Hyperparameters
from planner.reconcile.dry_comparison import DryComparison
from planner.reconcile.reconciliation import Reconciliation, Row

SCHEMA_VERSION = 1

Document = dict[str, Any]


def model_document(model: Model) -> Document:
    """A model in short."""
    return {
        "path": str(model.path),
        "name": model.name,
        "architecture": model.architecture,
        "ghost": model.is_ghost,
        "stands_for": None if model.stands_for is None else str(model.stands_for),
        "parameters": model.parameters,
        "tensor_bytes": model.tensor_bytes,
    }


def inspect_document(model: Model) -> Document:
    """Everything that the header says; long arrays as their length."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model_document(model),
        "gguf_version": model.header.version,
        "problem": problem_of(model),
        "hyperparameters": None if model.rules is None or problem_of(model) else _shape_document(model.hyperparameters),
        "metadata": {key: _metadata_value(value) for key, value in model.metadata.items()},
        "tensors": [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "type": tensor.type.name,
                "size_bytes": tensor.nbytes,
            }
            for tensor in model.tensors
        ],
    }


def problem_of(model: Model) -> str | None:
    """Why llama.cpp would refuse the metadata; None where it would not."""
    try:
        _ = model.layout
    except ModelError as error:
        return str(error)
    return None


def _metadata_value(value: MetadataValue) -> Any:
    if isinstance(value, LongArray):
        return {"length": value.length}
    if isinstance(value, tuple):
        return [_metadata_value(entry) for entry in value]
    # JSON has no word for these.
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shape_document(shape: Hyperparameters) -> Document:
    return {**asdict(shape), "gqa_groups": shape.gqa_groups}


def launch_document(launch: Launch) -> Document:
    """A launch under the names of llama-server's options."""
    return asdict(launch)


def engine_document(engine: AnyEngine) -> Document:
    """An engine, as the measurements of it name it, and where it is."""
    return {
        "version": engine.version,
        "build": engine.build,
        "backends": list(engine.backends),
        "path": str(engine.path),
    }


def hardware_document(hardware: Hardware) -> Document:
    """A machine."""
    return {
        "pools": [{**asdict(pool), "margin_bytes": pool.margin_bytes} for pool in hardware.pools],
        "devices": [asdict(device) for device in hardware.devices],
        "cpu": {
            "model": hardware.cpu_model,
            "architecture": hardware.cpu_architecture,
            "cores": hardware.cpu_cores,
            "features": sorted(hardware.cpu_features),
        },
        "warnings": list(hardware.warnings),
    }


def plan_document(model: Model, plan: MemoryPlan, comparison: DryComparison | None = None) -> Document:
    """One prediction; with llama.cpp's dry run beside it where one was made."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model_document(model),
        "hardware": hardware_document(plan.hardware),
        **_plan_body(plan),
        **({} if comparison is None else {"dry_run": _dry_run_document(comparison)}),
    }


def grid_document(model: Model, hardware: Hardware, grid: Grid) -> Document:
    """A grid: every cell with its launch, its verdict and its figures, and whose figures they are."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model_document(model),
        "hardware": hardware_document(hardware),
        "cells": [
            {
                "ctx_per_user": cell.ctx_per_user,
                "users": cell.users,
                "cache_type": cell.cache_type,
                "source": cell.source,
                **_plan_body(cell.plan),
            }
            for cell in grid.cells
        ],
    }


def _dry_run_document(comparison: DryComparison) -> Document:
    return {
        "way": comparison.dry_run.way,
        "build": comparison.dry_run.build,
        "refusal": comparison.dry_run.refusal,
        "rows": [
            {**asdict(row), "delta_bytes": row.delta_bytes, "beyond_range": row.beyond_range} for row in comparison.rows
        ],
        "warnings": list(comparison.warnings),
    }


def _plan_body(plan: MemoryPlan) -> Document:
    return {
        "launch": launch_document(plan.launch),
        "context": None if plan.context is None else {**asdict(plan.context), "n_ctx_slot": plan.n_ctx_slot},
        "verdict": plan.verdict.value,
        "verdict_reason": plan.verdict_reason,
        "refusal": plan.refusal or None,
        "missing": plan.missing or None,
        "reserved_bytes": plan.bytes(),
        "resident_bytes": plan.resident_bytes(),
        "growth_bytes": plan.growth_bytes(),
        "headroom_bytes": {pool.name: plan.headroom_bytes(pool) for pool in plan.hardware.pools},
        "devices": [
            {
                "name": device.name,
                "pool": device.pool.name,
                "verdict": device.verdict.value,
                "reserved_bytes": device.total_bytes,
                "allocations": [_allocation_document(allocation) for allocation in device.allocations],
            }
            for device in plan.devices
        ],
        "notes": list(plan.notes),
    }


def _allocation_document(allocation: Allocation) -> Document:
    return {name: value for name, value in asdict(allocation).items() if name != "device"}


def run_document(reconciliation: Reconciliation) -> Document:
    """One measured run beside its prediction."""
    measurement = reconciliation.measurement
    return {
        "hardware": hardware_document(reconciliation.plan.hardware),
        "predicted": _plan_body(reconciliation.plan),
        "measured": _measurement_document(measurement),
        "reconciliation": {
            "reserved": [_row_document(row) for row in reconciliation.reserved],
            "resident": _row_document(reconciliation.resident),
            "on_devices": [_row_document(row) for row in reconciliation.on_devices],
            "learned_overhead_bytes": reconciliation.learned_overhead_bytes,
            "lessons": reconciliation.lessons.document(),
        },
        "command": command_of(measurement),
    }


def command_of(measurement: Measurement) -> str | None:
    """The command that ran, quoted for a shell; None where the settings were handed to llama-cpp-python."""
    if not measurement.command:
        return None
    return shell_command(measurement.command, ghost=measurement.ghost, stands_for=measurement.stands_for)


def _row_document(row: Row) -> Document:
    return {**asdict(row), "delta_bytes": row.delta_bytes}


def _measurement_document(measurement: Measurement) -> Document:
    log = measurement.log
    return {
        "started_at": measurement.started_at,
        "engine": {
            "version": measurement.engine_version,
            "build": measurement.engine_build,
            "backends": list(measurement.engine_backends),
        },
        "load_seconds": round(measurement.load_seconds, 3),
        "buffers": [asdict(buffer) for buffer in log.buffers],
        "context": dict(log.context),
        "checkpoints_bytes": log.checkpoints_bytes,
        "prompt_cache_bytes": log.prompt_cache_bytes,
        "peak_bytes": measurement.peak_bytes,
        "ready": _sample_document(measurement.ready),
        "steady": _sample_document(measurement.steady),
        "after": _sample_document(measurement.after),
        "samples": [_sample_document(sample, with_reasons=False) for sample in measurement.samples],
        "devices": [asdict(device) for device in measurement.devices],
        "phases": [asdict(phase) for phase in measurement.phases],
        "seed": measurement.seed,
        "fill": measurement.fill,
        "everyone": asdict(measurement.everyone),
        "one": asdict(measurement.one),
        "soak": None if measurement.soak is None else _soak_document(measurement.soak),
    }


def _soak_document(soak: Soak) -> Document:
    return {
        **asdict(soak),
        "seconds": round(soak.seconds, 3),
        "before": _sample_document(soak.before),
        "after": _sample_document(soak.after),
        "grown_bytes": soak.grown_bytes,
    }


def _sample_document(sample: Sample, *, with_reasons: bool = True) -> Document:
    """A sample; of thousands only a few say why a figure of an accelerator is unknown."""
    document = {**asdict(sample), "seconds": round(sample.seconds, 3)}
    if not with_reasons:
        for device in document["devices"]:
            del device["reason"]
    return document


def measure_document(
    model: Model,
    hardware: Hardware,
    runs: Sequence[Document],
    skipped: Sequence[tuple[MemoryPlan, AnyEngine]],
    failed: Sequence[tuple[Launch, AnyEngine, str]],
    recommendation: Recommendation | None,
    command: str | None,
) -> Document:
    """The main job: every run (`run_document`), what did not fit, what failed, and the launch to use."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model_document(model),
        "hardware": hardware_document(hardware),
        "runs": list(runs),
        "not_run": [{**_plan_body(plan), "engine": engine_document(engine)} for plan, engine in skipped],
        "failed": [
            {"launch": launch_document(launch), "engine": engine_document(engine), "error": error}
            for launch, engine, error in failed
        ],
        "recommendation": None
        if recommendation is None
        else {
            "launch": launch_document(recommendation.launch),
            "reason": recommendation.reason,
            "command": command,
        },
    }
