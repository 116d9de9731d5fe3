"""`planner --measure`: the main job, headless."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import click

from planner.campaign import DEFAULT_CONTEXT, DEFAULT_USERS, Campaign, launches_for, machine_of, run_campaign
from planner.cli.progress import ProgressLine
from planner.cli.render import format_count, labelled, launch_summary, render_hardware, render_table
from planner.engine.find import Engine, find_engine
from planner.errors import CutOffError, ModelError, PlannerError
from planner.export.documents import measure_document, run_document
from planner.fit import MAIN_CACHE_TYPES
from planner.hardware import Hardware
from planner.launch import Launch
from planner.measure import Speed
from planner.measure.run import READY_TIMEOUT_S
from planner.memory import Verdict, predict
from planner.model import Model
from planner.model.catalogue import CatalogueEntry, find_entry, load_catalogue
from planner.model.discover import find_models, usual_folders
from planner.model.ghost import temporary_ghost
from planner.reconcile.reconciliation import Reconciliation, Row
from planner.reconcile.record import Record, default_folder
from planner.units import MIB, format_bytes, format_mib, signed_mib


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", required=False)
@click.option("--ghost", is_flag=True, help="Measure a ghost of MODEL: a true header without weights.")
@click.option("--context", type=click.IntRange(1), metavar="N", help="Tokens for each person.  [default: 8192]")
@click.option("--users", type=click.IntRange(1), metavar="M", help="People served at once.  [default: 2]")
@click.option("--engine", type=click.Path(path_type=Path), metavar="PATH", help="The llama-server to use.")
@click.option("--force", is_flag=True, help="Measure also what is predicted not to fit.")
@click.option("--ready-timeout", type=click.FloatRange(min=0.1), metavar="SECONDS", help="[default: 600]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def measure_command(
    model: str | None,
    ghost: bool,
    context: int | None,
    users: int | None,
    engine: Path | None,
    force: bool,
    ready_timeout: float | None,
    as_json: bool,
) -> None:
    """Measure llama-server with f16, q8_0 and q4_0 caches and hold it against the prediction.

    The same as `planner --measure [MODEL]`. With --ghost, MODEL may be cut off behind its header, or a name of
    the catalogue; nothing of its weights is read.
    """
    run_measure(
        model=model,
        ghost=ghost,
        context=context,
        users=users,
        engine=engine,
        force=force,
        ready_timeout=ready_timeout,
        as_json=as_json,
    )


def run_measure(
    *,
    model: str | None,
    ghost: bool,
    context: int | None,
    users: int | None,
    engine: Path | None,
    force: bool,
    ready_timeout: float | None,
    as_json: bool,
) -> None:
    """Run the main job and print its report; errors are raised, for the entry point to put into words."""
    found = find_engine(engine)
    hardware = machine_of(found)
    with _chosen_model(model, hardware, ghost=ghost) as (opened, why):
        launches = launches_for(
            opened,
            hardware,
            users=users or DEFAULT_USERS,
            ctx_per_user=context or _default_context(opened),
            cache_types=MAIN_CACHE_TYPES,
        )
        if not as_json:
            click.echo(_opening(opened, why, hardware, found))
        line = ProgressLine(launches)

        def show(run: Reconciliation) -> None:
            line.clear()
            if not as_json:
                click.echo(render_run(run))

        try:
            campaign = run_campaign(
                opened,
                launches,
                found,
                Record(default_folder()),
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
                [run_document(run) for run in campaign.runs],
                campaign.not_run,
                [(failure.launch, str(failure.error)) for failure in campaign.failed],
                campaign.recommendation,
                campaign.recommended_command,
            )
            click.echo(json.dumps({**document, "model_chosen_because": why}, indent=2))
        else:
            click.echo(render_campaign(campaign))


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


def _opening(model: Model, why: str, hardware: Hardware, engine: Engine) -> str:
    size = f"{format_count(model.parameters)} parameters, {format_bytes(model.tensor_bytes)}"
    lines = [
        render_hardware(hardware),
        labelled("Engine", f"llama-server {engine.version} ({engine.source}: {engine.path})"),
        labelled("Model", f"{model.name}: {model.architecture}, {size} ({model.path})"),
        labelled("", f"Chosen because {why}."),
    ]
    if engine.devices:
        lines.append(labelled("Note", "Accelerators are planned from llama.cpp's source; no real one was seen yet."))
    return "\n".join(lines)


_RUN_HEADER = ("MiB", "predicted", "dry run", "measured", "delta", "cause")


def render_run(run: Reconciliation) -> str:
    """One run: the table of its components, resident memory, and speed."""
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
            f"{speeds}. Prompts of {one.prompt_tokens} tokens, loaded in {measurement.load_seconds:.1f} s.",
        ),
    ]
    return "\n".join(parts)


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


def render_campaign(campaign: Campaign) -> str:
    """What to use."""
    lines = [""]
    for failure in campaign.failed:
        lines.append(labelled("Failed", f"{failure.launch.cache_type_k}: {failure.error}"))
    for plan in campaign.not_run:
        lines.append(labelled("Not run", f"{plan.launch.cache_type_k}: {plan.verdict_reason}"))
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
