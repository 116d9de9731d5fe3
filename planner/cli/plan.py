"""`planner plan MODEL`: predict one launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from planner.cli.options import (
    chosen_model,
    ignored_options,
    is_pasted,
    launch_from,
    launch_options,
    uncounted_options,
)
from planner.cli.render import render_plan
from planner.errors import EngineError
from planner.hardware import Hardware
from planner.launch import Launch
from planner.memory import MemoryPlan, Verdict, predict
from planner.model import Model
from planner.units import parse_size


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", nargs=-1, metavar="MODEL")
@click.option("-m", "--model", type=click.Path(path_type=Path), hidden=True)
@launch_options
@click.option("--ram", metavar="SIZE", help="Plan for a machine with this much free RAM, as in 16G.")
@click.option("--vram", metavar="SIZE,...", help="... and cards with so much free VRAM, as in 24G,12G.")
@click.option("--engine", type=click.Path(path_type=Path), metavar="PATH", help="The llama-server whose devices count.")
@click.option("--header-only", is_flag=True, help="Accept a file that is cut off behind its header.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plan(
    words: tuple[str, ...],
    model: Path | None,
    ram: str | None,
    vram: str | None,
    engine: Path | None,
    header_only: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Predict what llama-server will hold for MODEL, and whether that fits.

    MODEL is a GGUF file, any part of a split one, or its folder. Say what you want in people's words
    (--context, --users) or with llama-server's own options; a command that you already run can be pasted
    behind `planner plan`, program and all. Without either: one person, the trained context.
    """
    launch = launch_from(options, pasted=is_pasted(words))
    hardware = _hardware(ram, vram, engine, launch)
    opened = Model.open(chosen_model(words, model), header_only=header_only)
    prediction = _predict(opened, launch, hardware)
    if as_json:
        import json

        from planner.export.documents import plan_document

        document = {**plan_document(opened, prediction), "not_counted": uncounted_options()}
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        click.echo(render_plan(opened, prediction))
        if ignored := ignored_options():
            click.echo(f"Left out, since it decides no memory: {' '.join(ignored)}.", err=True)
        if uncounted := uncounted_options():
            click.echo(f"Not counted, though it may take memory: {' '.join(uncounted)}.", err=True)
    return 3 if prediction.verdict in (Verdict.TOO_BIG, Verdict.REFUSED) else 0


def _predict(model: Model, launch: Launch, hardware: Hardware) -> MemoryPlan:
    if launch.fit and hardware.accelerators:
        from planner.fit import fit_layers

        asked, launch = launch, fit_layers(model, launch, hardware)
        if launch != asked and launch.n_gpu_layers != model.hyperparameters.n_layer_all + 1:
            layers = "no layer" if launch.device == "none" else f"{launch.n_gpu_layers} layers"
            click.echo(f"With {layers} on accelerators, about as --fit would choose (-ngl says otherwise).", err=True)
    from planner.reconcile.record import Record, default_folder, used_devices

    prediction = predict(model, launch, hardware)
    overhead = Record(default_folder()).learned_overhead(model, None, used_devices(prediction))
    return prediction if overhead is None else predict(model, launch, hardware, overhead_bytes=overhead)


def _hardware(ram: str | None, vram: str | None, engine: Path | None, launch: Launch) -> Hardware:
    here = Hardware.detect()
    if ram is None and vram is None:
        return _with_accelerators(here, engine) if engine or _may_offload(here, launch) else here
    return Hardware.simulate(
        ram=parse_size(ram) if ram else here.host.usable_bytes or 0,
        vram=[parse_size(size) for size in vram.split(",")] if vram else (),
        cpu_features=here.cpu_features,
        cpu_architecture=here.cpu_architecture,
    )


def _may_offload(here: Hardware, launch: Launch) -> bool:
    """Whether it is worth the time to ask an engine for its devices."""
    return here.may_have_accelerators or any((launch.n_gpu_layers, launch.tensor_split, launch.device))


def _with_accelerators(here: Hardware, engine: Path | None) -> Hardware:
    from planner.engine.find import find_engine

    try:
        return here.with_accelerators(find_engine(engine).devices)
    except EngineError as error:
        if engine is not None:
            raise
        click.echo(f"Accelerators are left out of account: {error}", err=True)
        return here
