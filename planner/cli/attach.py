"""`planner measure --attach`: a server that is already running, held against its prediction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from planner.cli.options import launch_from, launch_options
from planner.cli.render import labelled, launch_summary, render_table
from planner.engine.find import variables_of
from planner.errors import EngineError, UsageError
from planner.export.documents import launch_document, model_document
from planner.hardware import Hardware
from planner.launch import Launch
from planner.measure import Sample
from planner.measure.attach import (
    AttachedRow,
    RunningServer,
    find_server,
    hold_attached,
    mapped_bytes,
    read_sample,
    settled_launch,
)
from planner.memory import MemoryPlan, predict
from planner.model import Model
from planner.model.projector import open_projector
from planner.reconcile.record import Record, default_folder
from planner.units import format_bytes, format_mib

_TRUE, _FALSE = ("1", "true", "on", "enabled"), ("0", "false", "off", "disabled")


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("-m", "--model")
@launch_options
def _running(model: str | None, **options: Any) -> tuple[str | None, Launch]:
    """The options of a command that somebody else gave."""
    return model, launch_from(options, pasted=True)


def print_attached(target: str, model: str | None, *, as_json: bool) -> None:
    """Look at the server with this address or process id and print what it holds; nothing of it is touched."""
    server = find_server(target)
    named, launch = _launch_of(server)
    opened = Model.open(_model_path(server, named, model))
    launch, note = settled_launch(server, launch, opened)
    sample = read_sample(server)
    hardware = Hardware.detect()
    projector = open_projector((server.folder or Path()) / launch.mmproj) if launch.mmproj else None
    fresh, full = (_predict(opened, launch, hardware, server, projector, prompt_tokens=tokens) for tokens in (1, None))
    rows = hold_attached(fresh, full, sample, mapped_bytes(server.pid, opened.path.resolve()))
    notes = [note] if note else []
    if any(not device.is_cpu for device in full.devices) or hardware.may_have_accelerators:
        notes.append("What lies on accelerators is not looked at.")
    if as_json:
        click.echo(json.dumps(_document(server, opened, launch, sample, rows, notes), indent=2))
    else:
        click.echo(_text(server, opened, full, sample, rows, notes))


def _launch_of(server: RunningServer) -> tuple[str | None, Launch]:
    arguments = [*_from_variables(server), *server.command[1:]]
    try:
        context = _running.make_context("llama-server", arguments)
        with context:
            named, launch = _running.invoke(context)
    except click.ClickException as error:
        raise EngineError(
            f"The command of process {server.pid} is not that of a llama-server: {error.format_message()}"
        ) from None
    return named, launch


def _from_variables(server: RunningServer) -> list[str]:
    """The options that its environment sets, as arguments; those that planner does not know decide no memory."""
    if not server.variables or server.program is None:
        return []
    flags = variables_of(server.program)
    known = {name: option for option in _running.params for name in (*option.opts, *option.secondary_opts)}
    arguments: list[str] = []
    for variable, value in server.variables.items():
        option = known.get(flags.get(variable, ""))
        if not isinstance(option, click.Option):
            continue
        if not option.is_flag:
            arguments += [flags[variable], value]
        elif value.lower() in _TRUE:
            arguments.append(flags[variable])
        elif value.lower() in _FALSE and option.secondary_opts:
            arguments.append(max(option.secondary_opts, key=len))
    return arguments


def _model_path(server: RunningServer, named: str | None, given: str | None) -> Path:
    if given is not None:
        return Path(given)
    if server.model_path is not None:
        return server.model_path
    if named is not None:
        return (server.folder or Path()) / named
    raise UsageError(
        f"Which model process {server.pid} serves is not to be seen.", "Name it: planner measure MODEL --attach ..."
    )


def _predict(
    model: Model,
    launch: Launch,
    hardware: Hardware,
    server: RunningServer,
    projector: Model | None,
    *,
    prompt_tokens: int | None,
) -> MemoryPlan:
    learned = Record(default_folder()).learned(model, hardware, server.build)
    return predict(model, launch, hardware, learned=learned, prompt_tokens=prompt_tokens, projector=projector)


def _document(
    server: RunningServer,
    model: Model,
    launch: Launch,
    sample: Sample,
    rows: Sequence[AttachedRow],
    notes: Sequence[str],
) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "pid": server.pid,
        "url": server.url,
        "command": list(server.command),
        "build": server.build,
        "slots_at_work": server.busy,
        "model": model_document(model),
        "launch": launch_document(launch),
        "measured": {name: value for name, value in asdict(sample).items() if name.endswith("_bytes")},
        "rows": [asdict(row) for row in rows],
        "notes": list(notes),
    }


_HEADER = ("MiB", "just loaded", "full and grown", "now", "cause")


def _text(
    server: RunningServer,
    model: Model,
    plan: MemoryPlan,
    sample: Sample,
    rows: Sequence[AttachedRow],
    notes: Sequence[str],
) -> str:
    where = f" at {server.url}" if server.url else ""
    work = "" if server.busy is None else f", {server.busy} of {server.slots or plan.launch.slots} slots at work"
    swap = f", {format_bytes(sample.swap_bytes)} swapped out" if sample.swap_bytes else ""
    return "\n".join(
        [
            labelled("Server", f"process {server.pid}{where}, build {server.build or 'unknown'}{work}"),
            labelled("Model", f"{model.name}: {model.architecture} ({model.path})"),
            "",
            f"━━ {launch_summary(plan.launch, plan)}",
            render_table(_HEADER, map(_row, rows), "lrrrl"),
            "",
            labelled(
                "Holds",
                f"{_mib(sample.resident_bytes)} MiB: {_mib(sample.anonymous_bytes)} of its own, "
                f"{_mib(sample.file_bytes)} mapped from files{swap}; highest so far {_mib(sample.peak_bytes)}",
            ),
            *(labelled("Note", note) for note in notes),
        ]
    )


def _row(row: AttachedRow) -> tuple[str, ...]:
    return (row.part, format_mib(row.low_bytes), format_mib(row.high_bytes), _mib(row.measured_bytes), row.cause)


def _mib(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else format_mib(size_bytes)
