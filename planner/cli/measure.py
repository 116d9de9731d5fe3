"""`planner --measure`: the main job, headless."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from planner.campaign import (
    DEFAULT_CONTEXT,
    DEFAULT_USERS,
    Campaign,
    Cell,
    Document,
    begin_sweep,
    cells_for,
    machine_of,
    run_cells,
)
from planner.cli.amount import Amount
from planner.cli.options import cache_types, numbers, part
from planner.cli.progress import ProgressLine
from planner.cli.render import format_count, labelled, launch_summary, render_hardware, render_table
from planner.engine.find import Engine, find_engine
from planner.errors import CutOffError, ModelError, PlannerError
from planner.export.documents import measure_document
from planner.fit import MAIN_CACHE_TYPES
from planner.hardware import Hardware
from planner.launch import CacheType, Launch
from planner.measure import Load, Measurement, Phase, Soak, Speed
from planner.measure.growth import Growth, hold_growth
from planner.measure.guard import DEADLINE_S
from planner.measure.run import READY_TIMEOUT_S
from planner.memory import Verdict, predict
from planner.model import Model
from planner.model.catalogue import CatalogueEntry, find_entry, load_catalogue
from planner.model.discover import find_models, usual_folders
from planner.model.ghost import temporary_ghost
from planner.reconcile.reconciliation import Reconciliation, Row
from planner.reconcile.record import Record, default_folder
from planner.units import MIB, format_bytes, format_mib, format_tokens, signed_mib


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", required=False)
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
    help="The llama-server to use; several times for several.",
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
    model: str | None,
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
    """Measure llama-server with f16, q8_0 and q4_0 caches and hold it against the prediction.

    The same as `planner --measure [MODEL]`. Of --context, --users, --cache-type and --engine every combination
    is measured; each result is in the record as soon as it is there. With --ghost, MODEL may be cut off behind
    its header, or a name of the catalogue; nothing of its weights is read.
    """
    if attach is not None:
        from planner.cli.attach import print_attached

        _check_alone("--attach", "model", "as_json")
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
    found = [find_engine(engine) for engine in engines] or [find_engine()]
    hardware = machine_of(found[0])
    load = load or Load()
    record = Record(default_folder())
    with _chosen_model(model, hardware, ghost=ghost) as (opened, why):
        cells = cells_for(
            opened,
            hardware,
            found,
            users=users or [DEFAULT_USERS],
            contexts=context or [_default_context(opened)],
            cache_types=cache_types or MAIN_CACHE_TYPES,
            unified=unified,
        )
        sweep = begin_sweep(opened, cells, load, record, resume=resume)
        if not as_json:
            click.echo(_opening(opened, why, hardware, found))
            if sweep.ended:
                click.echo(labelled("Resumed", f"{len(sweep.ended)} of {len(cells)} were measured before."))
        line = ProgressLine([_short_name(cell, cells) for cell in cells])

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
                campaign.not_run,
                [(failure.launch, str(failure.error)) for failure in campaign.failed],
                campaign.recommendation,
                campaign.recommended_command,
            )
            click.echo(json.dumps({**document, "model_chosen_because": why}, indent=2))
        else:
            click.echo(render_campaign(campaign))


def _short_name(cell: Cell, cells: Sequence[Cell]) -> str:
    """What tells this cell from the others; its cache type always."""
    launch = cell.launch
    if len({(other.launch.slots, other.launch.ctx_size) for other in cells}) == 1:
        return launch.cache_type_k
    return f"{launch.cache_type_k} {launch.slots}x{format_tokens(launch.ctx_size // launch.slots)}"


def _default_context(model: Model) -> int:
    return min(DEFAULT_CONTEXT, model.hyperparameters.n_ctx_train) if model.rules else DEFAULT_CONTEXT


@contextlib.contextmanager
def _chosen_model(named: str | None, hardware: Hardware, *, ghost: bool) -> Iterator[tuple[Model, str]]:
    """The model to measure, for as long as it is there, and why it is this one."""
    best = None if ghost or named is not None else _best_model(hardware)
    if best is not None:
        yield best, "no model was named, and this is the largest of those found here that fits"
    elif named is not None and not ghost:
        yield _open_whole(named), "it was named"
    elif named is not None:
        source = _header_of(named)
        what = str(source.path) if isinstance(source, Model) else source.title
        with temporary_ghost(source) as opened:
            yield opened, f"it was named. {_about_ghost(opened, what)}"
    else:
        why = "no model was named" if ghost else "no model was named or found here"
        with temporary_ghost(load_catalogue()[0]) as opened:
            yield opened, f"{why}. {_about_ghost(opened, 'a small model')}"


def _about_ghost(ghost: Model, what: str) -> str:
    said = (
        f"This is a ghost: the true shapes of {what} around empty weights. Memory and speed are real, its answers "
        "are not"
    )
    if ghost.rules is None or not ghost.hyperparameters.n_expert:
        return said
    return f"{said}. It asks the same few experts for every token, so the model itself may be slower"


def _open_whole(named: str) -> Model:
    try:
        return Model.open(named)
    except CutOffError as error:
        raise CutOffError(error.message, "Finish the download, or measure a ghost of it with --ghost.") from None


def _header_of(named: str) -> Model | CatalogueEntry:
    """What a ghost is to be made of: a file or folder, else an entry of the catalogue."""
    if Path(named).expanduser().exists():
        return Model.open(named, header_only=True)
    try:
        return find_entry(named)
    except ModelError as error:
        raise ModelError(f"There is no file {named}, and the catalogue has no such model.", error.hint) from None


def _best_model(hardware: Hardware) -> Model | None:
    best: Model | None = None
    for path in find_models(usual_folders()):
        try:
            model = Model.open(path)
            fits = _fits(model, hardware)
        except PlannerError:
            continue  # a damaged file among many must not stop the others
        if fits and (best is None or model.tensor_bytes > best.tensor_bytes):
            best = model
    return best


def _fits(model: Model, hardware: Hardware) -> bool:
    launch = Launch.for_users(DEFAULT_USERS, _default_context(model))
    return not model.is_ghost and predict(model, launch, hardware).verdict in (Verdict.FITS, Verdict.TIGHT)


def _opening(model: Model, why: str, hardware: Hardware, engines: Sequence[Engine]) -> str:
    size = f"{format_count(model.parameters)} parameters, {format_bytes(model.tensor_bytes)}"
    lines = [
        render_hardware(hardware),
        *(labelled("Engine", f"llama-server {e.version} ({e.source}: {e.path})") for e in engines),
        labelled("Model", f"{model.name}: {model.architecture}, {size} ({model.path})"),
        labelled("", f"Chosen because {why}."),
    ]
    if any(engine.devices for engine in engines):
        lines.append(labelled("Note", "Accelerators are planned from llama.cpp's source; no real one was seen yet."))
    return "\n".join(lines)


_RUN_HEADER = ("MiB", "predicted", "dry run", "measured", "delta", "cause")


def render_run(run: Reconciliation, growth: Growth | None = None) -> str:
    """One run: the table of its components, resident memory over time, speed, and what a soak left."""
    measurement = run.measurement
    everyone, one = measurement.everyone, measurement.one
    steady = measurement.steady
    speeds = _speed(one) if one == everyone else f"{_speed(everyone)}; {_speed(one)}"
    parts = [
        "",
        f"━━ {launch_summary(measurement.launch, run.plan)}",
        render_table(_RUN_HEADER, map(_reserved_row, run.reserved), "lrrrrl"),
        "",
        render_table(("MiB", "predicted", "measured", "delta", "cause"), [_row(run.resident)], "lrrrl"),
        labelled(
            "",
            f"{_mib(steady.anonymous_bytes)} of it anonymous, {_mib(steady.file_bytes)} mapped from files; "
            f"peak of the run {_mib(measurement.peak_bytes)}",
        ),
        labelled(
            "Speed",
            f"{speeds}. Prompts of {one.prompt_tokens} tokens from seed {measurement.seed}, "
            f"loaded in {measurement.load_seconds:.1f} s.",
        ),
        labelled("Memory", f"{_over_time(measurement)}."),
    ]
    if growth is not None and measurement.soak is not None:
        parts.append(labelled("Soak", _soaked(measurement.soak, growth)))
    return "\n".join(parts)


_MOMENTS: dict[Phase, str] = {
    "loading": "loading",
    "ready": "ready",
    "everyone": "everyone filling",
    "steady": "steady",
    "one": "one alone",
    "idle": "idle",
    "soak": "after the soak",
}


def _over_time(measurement: Measurement) -> str:
    """Resident memory at the end of each phase."""
    told = (
        f"{_MOMENTS[phase.phase]} {format_bytes(phase.resident_bytes)}"
        for phase in measurement.phases
        if phase.phase in _MOMENTS and phase.resident_bytes is not None
    )
    return ", ".join(told) or "unknown"


def _soaked(soak: Soak, growth: Growth) -> str:
    until = "until nothing more was kept" if soak.ended == "level" else "until the time was over"
    grew = "by an unknown amount" if growth.grown_bytes is None else f"by {format_bytes(growth.grown_bytes)}"
    limit = "without limit" if growth.limit_bytes is None else f"by {format_bytes(growth.limit_bytes)} at most"
    return (
        f"{soak.conversations} conversations of {soak.tokens} tokens in {soak.seconds:.0f} s, {until}. The prompt "
        f"cache holds {len(soak.kept)}, {format_mib(growth.kept_bytes)} MiB ({format_mib(growth.predicted_kept_bytes)} "
        f"predicted). The server grew {grew} ({format_bytes(growth.predicted_bytes)} predicted) and may grow {limit}."
    )


def _speed(speed: Speed) -> str:
    who = "one alone" if speed.users == 1 else f"{speed.users} at once"
    return (
        f"{who} {speed.prompt_tokens_per_s:.0f} tokens/s read and {speed.generated_tokens_per_s:.1f} written "
        f"(first after {speed.first_token_s:.1f} s)"
    )


def _reserved_row(row: Row) -> tuple[str, ...]:
    name, predicted, *rest = _row(row)
    # llama.cpp's dry run prints whole MiB.
    return (name, predicted, "" if row.dry_run_bytes is None else f"{row.dry_run_bytes // MIB:,}", *rest)


def _row(row: Row) -> tuple[str, ...]:
    delta = row.delta_bytes
    return (
        row.component,
        format_mib(row.predicted_bytes),
        _mib(row.measured_bytes),
        "" if delta is None else signed_mib(delta),
        row.cause,
    )


def _mib(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else format_mib(size_bytes)


_SWEEP_HEADER = ("cache", "people", "tokens each", "MiB predicted", "measured", "read/s", "written/s", "engine")


def _sweep_row(document: Document) -> tuple[str, ...]:
    """One cell of a sweep, as its report tells it."""
    launch, measured = document["predicted"]["launch"], document["measured"]
    resident = document["reconciliation"]["resident"]
    everyone = measured["everyone"]
    return (
        launch["cache_type_k"],
        str(everyone["users"]),
        format_tokens(document["predicted"]["context"]["n_ctx_slot"]) if document["predicted"]["context"] else "",
        format_mib(resident["predicted_bytes"]),
        _mib(resident["measured_bytes"]),
        f"{everyone['prompt_tokens_per_s']:.0f}",
        f"{everyone['generated_tokens_per_s']:.1f}",
        measured["engine"]["build"],
    )


def render_campaign(campaign: Campaign) -> str:
    """What to use."""
    lines = [""]
    if len(campaign.documents) > len(campaign.runs) or (campaign.documents and campaign.recommendation is None):
        lines += [render_table(_SWEEP_HEADER, map(_sweep_row, campaign.documents), "lrrrrrrl"), ""]
    for failure in campaign.failed:
        lines.append(labelled("Failed", f"{failure.launch.cache_type_k}: {failure.error}"))
    for plan in campaign.not_run:
        lines.append(labelled("Not run", f"{plan.launch.cache_type_k}: {plan.verdict_reason}"))
    if campaign.documents and campaign.recommendation is None:
        return "\n".join(lines).rstrip()
    if campaign.recommendation is None or campaign.recommended_command is None:
        return "\n".join([*lines, "No launch can be recommended: none of them fits."])
    cache_type = campaign.recommendation.launch.cache_type_k
    return "\n".join(
        [
            *lines,
            labelled("Use", f"the {cache_type} cache. {campaign.recommendation.reason}"),
            labelled("", _what_ran(campaign)),
            "",
            f"    {campaign.recommended_command}",
        ]
    )


def _what_ran(campaign: Campaign) -> str:
    measured = [run.measurement for run in campaign.runs]
    ran = "ran here, with a free port, a key and a more talkative log."
    if not any(measurement.ghost for measurement in measured):
        return f"This {ran}"
    if any(measurement.stands_for is not None for measurement in measured):
        return f"A ghost of this file {ran} The file itself was not loaded."
    return f"A ghost {ran} It is gone: put the model itself in its place."
