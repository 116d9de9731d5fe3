"""`planner --measure`: the main job, headless."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from planner.campaign import run_cells
from planner.cli.amount import Amount
from planner.cli.chosen import chosen_model, default_context
from planner.cli.options import cache_types, numbers, part
from planner.cli.progress import ProgressLine
from planner.cli.render import format_count, labelled, render_hardware
from planner.cli.render_run import render_campaign, render_run, short_name
from planner.engine.library import AnyEngine, find_any_engine
from planner.export.documents import measure_document
from planner.fit import MAIN_CACHE_TYPES
from planner.hardware import Hardware
from planner.launch import CacheType, Launch
from planner.measure import Load
from planner.measure.growth import hold_growth
from planner.measure.guard import DEADLINE_S
from planner.measure.run import READY_TIMEOUT_S
from planner.measure.runner import check_able
from planner.model import Model
from planner.reconcile.reconciliation import Reconciliation
from planner.reconcile.record import Record, default_folder
from planner.sweeps import DEFAULT_USERS, begin_sweep, cells_for, seen_by
from planner.units import format_bytes


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("models", nargs=-1, metavar="[MODEL]")
@click.option("--ghost", is_flag=True, help="Measure a ghost of MODEL: a true header without weights.")
@click.option("--context", callback=numbers, metavar="N,...", help="Tokens for each person.  [default: 8192]")
@click.option("--users", callback=numbers, metavar="M,...", help="People served at once.  [default: 2]")
@click.option("--cache-type", callback=cache_types, metavar="TYPE,...", help="[default: f16,q8_0,q4_0]")
@click.option("--unified", is_flag=True, help="All people share one cache.")
@click.option(
    "--engine",
    "engines",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="PATH",
    help="The llama-server to use, or llama-cpp-python; several times for several.",
)
@click.option(
    "--fill",
    callback=part,
    metavar="PART",
    help="How much of the context each person fills: 25%, full.  [default: one ubatch and a little more]",
)
@click.option("--soak", type=Amount(min=0.01), metavar="MINUTES", help="Then hold conversations.")
@click.option("--deadline", type=Amount(min=0.01), metavar="MINUTES", help="End a run then.  [default: 60]")
@click.option("--resume", is_flag=True, help="Leave out what the last call that asked the same has measured.")
@click.option("--force", is_flag=True, help="Measure also what is predicted not to fit.")
@click.option("--ready-timeout", type=Amount(min=0.1), metavar="SECONDS", help="[default: 600]")
@click.option("--attach", metavar="URL|PID", help="Hold a llama-server that is running against the prediction.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def measure_command(
    models: tuple[str, ...],
    ghost: bool,
    context: tuple[int, ...],
    users: tuple[int, ...],
    cache_type: tuple[CacheType, ...],
    unified: bool,
    engines: tuple[Path, ...],
    fill: float | None,
    soak: float | None,
    deadline: float | None,
    resume: bool,
    force: bool,
    ready_timeout: float | None,
    attach: str | None,
    as_json: bool,
) -> None:
    """Measure llama.cpp with f16, q8_0 and q4_0 caches and hold it against the prediction.

    The same as `planner --measure [MODEL]`. Of --context, --users, --cache-type and --engine every combination
    is measured; each result is in the record as soon as it is there. With --ghost, MODEL may be cut off behind
    its header, or a name of the catalogue; nothing of its weights is read.
    """
    if len(models) > 1:
        raise click.UsageError(f"One model at a time, not {' and '.join(models)}.")
    if "" in models:
        raise click.UsageError("MODEL is empty: name a file, or leave it out.")
    model = models[0] if models else None
    if attach is not None:
        from planner.cli.attach import print_attached

        _check_alone("--attach", "models", "as_json")
        print_attached(attach, model, as_json=as_json)
        return
    run_measure(
        model=model,
        ghost=ghost,
        context=context,
        users=users,
        cache_types=cache_type,
        unified=unified,
        engines=engines,
        load=Load(fill=fill, soak_minutes=soak or 0.0),
        deadline_s=DEADLINE_S if deadline is None else 60 * deadline,
        resume=resume,
        force=force,
        ready_timeout=ready_timeout,
        as_json=as_json,
    )


def _check_alone(option: str, *beside: str) -> None:
    """Raise where an option that takes nothing beside it but these was given with more."""
    context = click.get_current_context()
    given = [
        parameter.opts[-1]
        for parameter in context.command.params
        if parameter.name not in (option.removeprefix("--"), *beside)
        and context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(f"{option} looks at what is there: leave out {', '.join(given)}.")


def run_measure(
    *,
    model: str | None,
    ghost: bool = False,
    context: Sequence[int] = (),
    users: Sequence[int] = (),
    cache_types: Sequence[CacheType] = (),
    unified: bool = False,
    engines: Sequence[Path] = (),
    load: Load | None = None,
    deadline_s: float = DEADLINE_S,
    resume: bool = False,
    force: bool,
    ready_timeout: float | None,
    as_json: bool,
) -> None:
    """Run the main job and print its report; errors are raised, for the entry point to put into words."""
    found = [find_any_engine(engine) for engine in engines] or [find_any_engine()]
    load = load or Load()
    for engine in found:
        check_able(engine, Launch(), soaked=load.soak_minutes > 0)
    hardware = seen_by(found[0], Hardware.detect())
    record = Record(default_folder())
    with chosen_model(model, hardware, ghost=ghost) as (opened, why):
        cells = cells_for(
            opened,
            hardware,
            found,
            users=users or [DEFAULT_USERS],
            contexts=context or [default_context(opened)],
            cache_types=cache_types or MAIN_CACHE_TYPES,
            unified=unified,
        )
        sweep = begin_sweep(opened, cells, load, record, resume=resume)
        if not as_json:
            click.echo(_opening(opened, why, hardware, list(dict.fromkeys(cell.engine for cell in cells))))
            if sweep.ended:
                click.echo(labelled("Resumed", f"{len(sweep.ended)} of {len(cells)} were measured before."))
        line = ProgressLine([short_name(cell, cells) for cell in cells])

        def show(run: Reconciliation) -> None:
            line.clear()
            if not as_json:
                click.echo(render_run(run, hold_growth(run.plan, opened, run.measurement)))

        try:
            campaign = run_cells(
                opened,
                cells,
                record,
                sweep=sweep,
                load=load,
                deadline_s=deadline_s,
                force=force,
                on_progress=line.update,
                on_run=show,
                ready_timeout_s=ready_timeout or READY_TIMEOUT_S,
            )
        finally:
            line.clear()
        if as_json:
            document = measure_document(
                opened,
                hardware,
                campaign.documents,
                [(left.plan, left.cell.engine) for left in campaign.not_run],
                [(failure.cell.launch, failure.cell.engine, str(failure.error)) for failure in campaign.failed],
                campaign.recommendation,
                campaign.recommended_command,
            )
            click.echo(json.dumps({**document, "model_chosen_because": why}, indent=2))
        else:
            click.echo(render_campaign(campaign))


def _opening(model: Model, why: str, hardware: Hardware, engines: Sequence[AnyEngine]) -> str:
    size = f"{format_count(model.parameters)} parameters, {format_bytes(model.tensor_bytes)}"
    lines = [
        render_hardware(hardware),
        *(labelled("Engine", f"{engine.title} ({engine.source}: {engine.path})") for engine in engines),
        *(
            labelled("", f"{engine.instead_of} So llama-cpp-python is measured.")
            for engine in engines
            if engine.instead_of
        ),
        labelled("Model", f"{model.name}: {model.architecture}, {size} ({model.path})"),
        labelled("", f"Chosen because {why}."),
    ]
    if any(engine.devices for engine in engines):
        lines.append(labelled("Note", "Accelerators are planned from llama.cpp's source; no real one was seen yet."))
    return "\n".join(lines)
