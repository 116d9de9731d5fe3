"""`planner history`: past measurements, and what was learned from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from planner.cli.render_history import render_history, render_kept
from planner.errors import PlannerError
from planner.reconcile.history import History, Run, in_force
from planner.reconcile.record import Record, default_folder

_HELP = {"help_option_names": ["-h", "--help"]}


@click.group(invoke_without_command=True, context_settings=_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def history(ctx: click.Context, as_json: bool) -> None:
    """List every measurement that was made here, and what the next prediction learns from them.

    A run is named by its id, or by as much of its beginning as tells it from others.
    """
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError(f"Put --json behind {ctx.invoked_subcommand}, not before it.")
        return
    record = Record(default_folder())
    kept = record.history()
    _say_what_is_later(kept)
    if as_json:
        from planner.export.history import history_document

        click.echo(json.dumps(history_document(kept), indent=2))
    elif kept.runs:
        click.echo(render_history(kept))
    else:
        click.echo(f"Nothing was measured yet (`planner --measure`); runs will be kept in {record.path}.")


@history.command(context_settings=_HELP)
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def show(run: str, as_json: bool) -> None:
    """Print everything that was kept of RUN, with the log of the engine."""
    record = Record(default_folder())
    found = record.find(run)
    report, log = record.body(found)
    if as_json:
        from planner.export.history import kept_document

        click.echo(json.dumps(kept_document(found, report, log), indent=2))
    else:
        try:
            page = render_kept(found, report, log)
        except (AttributeError, KeyError, TypeError, ValueError):  # its line was changed by something else
            raise PlannerError(
                f"The report of run {found.id} is damaged.",
                f"`planner history show {found.id} --json` prints it as it is.",
            ) from None
        click.echo(page)


@history.command(context_settings=_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document in place of JSON lines.")
def export(as_json: bool) -> None:
    """Print every run with everything that was kept of it: one JSON document a line."""
    from planner.export.documents import SCHEMA_VERSION

    record = Record(default_folder())
    kept = record.history()
    _say_what_is_later(kept)
    if as_json:
        click.echo(json.dumps({"schema_version": SCHEMA_VERSION, "runs": list(_documents(record, kept))}, indent=2))
        return
    for document in _documents(record, kept):
        click.echo(json.dumps(document, separators=(",", ":")))


@history.command(context_settings=_HELP)
@click.argument("run")
def forget(run: str) -> None:
    """Take back what RUN taught: no prediction uses it any more. The run itself stays in the record."""
    record = Record(default_folder())
    found = record.find(run)
    if found.forgotten:
        click.echo(f"What run {found.id} taught was taken back before; nothing changes.")
        return
    used = [value for value in in_force(record.history().runs) if found.id in value.runs]
    record.forget(found)
    click.echo(f"Forgotten: no prediction uses run {found.id} any more, nor is its speed shown.")
    left = {(value.what, value.of): value.runs for value in in_force(record.history().runs)}
    for value in used:
        runs = left.get((value.what, value.of))
        instead = f"run {', '.join(runs)} tells it now" if runs else "it is an estimate again"
        click.echo(f"The {value.what} of {value.of}: {instead}.")


def _documents(record: Record, kept: History) -> Iterator[dict[str, Any]]:
    from planner.export.history import kept_document

    runs: dict[str, Run] = {run.id: run for run in kept.runs}
    for run, report, log in record.bodies():
        if run in runs:
            yield kept_document(runs[run], report, log)


def _say_what_is_later(kept: History) -> None:
    if count := len(kept.later):
        runs = "1 entry was" if count == 1 else f"{count} entries were"
        click.echo(f"{runs} written by a later planner and cannot be read by this one: update it.", err=True)
