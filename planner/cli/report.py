"""`planner` where standard output is no terminal: what the app would show first, as plain text."""

from __future__ import annotations

import json
from pathlib import Path

import click

from planner.cli.render import render_hardware, render_table
from planner.engine.library import find_any_engine
from planner.errors import PlannerError
from planner.export.documents import SCHEMA_VERSION, hardware_document, model_document
from planner.hardware import Hardware
from planner.launch import Launch
from planner.memory import predict
from planner.model import Model
from planner.model.discover import find_models, usual_folders
from planner.sweeps import DEFAULT_CONTEXT, DEFAULT_USERS, seen_by
from planner.units import format_bytes


def print_report(engine: Path | None, *, as_json: bool) -> None:
    """The machine, the engine, and the models found with their verdicts."""
    hardware = Hardware.detect()
    try:
        found = find_any_engine(engine)
        hardware = seen_by(found, hardware)
        engine_text = f"{found.title} ({found.source}: {found.path})"
    except PlannerError as error:
        engine_text = f"none. {error}"
    models, unreadable = _models()
    if as_json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "hardware": hardware_document(hardware),
            "engine": engine_text,
            "models": [model_document(model) for model in models],
            "unreadable": unreadable,
        }
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(f"{render_hardware(hardware)}\nEngine    {engine_text}\n")
    click.echo(_model_table(models, hardware))
    for sentence in unreadable:
        click.echo(f"Warning   {sentence}")
    click.echo("\nNext: planner plan MODEL, or planner --measure [MODEL]. In a terminal, planner opens the app.")


def _models() -> tuple[list[Model], list[str]]:
    models, unreadable = [], []
    for path in find_models(usual_folders()):
        try:
            models.append(Model.open(path))
        except PlannerError as error:
            unreadable.append(error.message)
    return models, unreadable


def _model_table(models: list[Model], hardware: Hardware) -> str:
    if not models:
        return "No model is found in the usual folders; planner --measure then measures a small ghost."
    rows = []
    for model in models:
        launch = Launch.for_users(DEFAULT_USERS, DEFAULT_CONTEXT)
        plan = predict(model, launch, hardware)
        rows.append((model.path.name, model.architecture, format_bytes(model.tensor_bytes), plan.verdict.value))
    heading = f"{DEFAULT_USERS} x {DEFAULT_CONTEXT:,} tokens"
    return render_table(("model", "architecture", "weights", heading), rows, "llrl")
