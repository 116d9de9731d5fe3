"""`planner inspect MODEL`: what a header says."""

from __future__ import annotations

import json
from pathlib import Path

import click

from planner.cli.render import render_model
from planner.model import Model


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--tensors", is_flag=True, help="List every tensor.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def inspect(model: Path, tensors: bool, as_json: bool) -> None:
    """Show the header of MODEL: architecture, layers, heads, GQA groups, windows, tensors.

    A file that is cut off behind its header can be inspected too.
    """
    opened = Model.open(model, header_only=True)
    if as_json:
        from planner.export.documents import inspect_document

        click.echo(json.dumps(inspect_document(opened), indent=2))
    else:
        click.echo(render_model(opened, list_tensors=tensors))
