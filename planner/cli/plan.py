"""`planner plan MODEL`: predict one launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from planner.cli.options import chosen_model, ignored_options, launch_from, launch_options
from planner.cli.render import render_plan
from planner.hardware import Hardware
from planner.memory import Verdict, predict
from planner.model import Model
from planner.units import parse_size


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", nargs=-1, metavar="MODEL")
@click.option("-m", "--model", type=click.Path(path_type=Path), hidden=True)
@launch_options
@click.option("--ram", metavar="SIZE", help="Plan for a machine with this much free RAM, as in 16G.")
@click.option("--vram", metavar="SIZE,...", help="... and cards with so much free VRAM, as in 24G,12G.")
@click.option("--header-only", is_flag=True, help="Accept a file that is cut off behind its header.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plan(
    words: tuple[str, ...],
    model: Path | None,
    ram: str | None,
    vram: str | None,
    header_only: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Predict what llama-server will hold for MODEL, and whether that fits.

    MODEL is a GGUF file, any part of a split one, or its folder. Say what you want in people's words
    (--context, --users) or with llama-server's own options; a command that you already run can be pasted
    behind `planner plan`, program and all. Without either: one person, the trained context.
    """
    launch = launch_from(options)
    hardware = _hardware(ram, vram)
    opened = Model.open(chosen_model(words, model), header_only=header_only)
    prediction = predict(opened, launch, hardware, overhead_bytes=_learned_overhead(opened))
    if as_json:
        import json

        from planner.export.documents import plan_document

        click.echo(json.dumps(plan_document(opened, prediction), indent=2))
    else:
        click.echo(render_plan(opened, prediction))
        if ignored := ignored_options():
            click.echo(f"Left out, since it decides no memory: {' '.join(ignored)}.", err=True)
    return 3 if prediction.verdict in (Verdict.TOO_BIG, Verdict.REFUSED) else 0


def _hardware(ram: str | None, vram: str | None) -> Hardware:
    if ram is None and vram is None:
        return Hardware.detect()
    host = parse_size(ram) if ram else Hardware.detect().host.usable_bytes or 0
    return Hardware.simulate(ram=host, vram=[parse_size(size) for size in vram.split(",")] if vram else ())


def _learned_overhead(model: Model) -> int | None:
    from planner.reconcile.record import Record, default_folder

    return Record(default_folder()).learned_overhead(model, None)
