"""`planner plan MODEL`: predict one launch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.cli.machine import OtherMachine, machine_options
from planner.cli.options import (
    chosen_model,
    ignored_options,
    is_pasted,
    launch_from,
    launch_options,
    uncounted_options,
)
from planner.cli.render import labelled, render_plan
from planner.errors import EngineError, PlannerError, UsageError
from planner.hardware import Hardware
from planner.launch import Launch
from planner.memory import MemoryPlan, Verdict, predict
from planner.model import Model
from planner.model.projector import open_projector
from planner.units import format_bytes

if TYPE_CHECKING:
    from planner.reconcile.dry_comparison import DryComparison
    from planner.reconcile.history import History, Run


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", nargs=-1, metavar="MODEL")
@click.option("-m", "--model", type=click.Path(path_type=Path), hidden=True)
@launch_options
@machine_options
@click.option("--grid", "as_grid", is_flag=True, help="A table of contexts, people and cache types.")
@click.option("--header-only", is_flag=True, help="Accept a file that is cut off behind its header.")
@click.option("--dry-run", "asked", is_flag=True, help="Ask llama.cpp, too: it counts and allocates nothing.")
@click.option(
    "--engine", type=click.Path(path_type=Path), metavar="PATH", help="The llama-server to ask, or whose devices count."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plan(
    words: tuple[str, ...],
    model: Path | None,
    ram: str | None,
    vram: str | None,
    unified: str | None,
    machine: str | None,
    report: Path | None,
    as_grid: bool,
    header_only: bool,
    asked: bool,
    engine: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Predict what llama-server will hold for MODEL, and whether that fits.

    MODEL is a GGUF file, any part of a split one, or its folder. Say what you want in people's words
    (--context, --users) or with llama-server's own options; a command that you already run can be pasted
    behind `planner plan`, program and all. Without either: one person, the trained context.
    """
    other = OtherMachine(ram=ram, vram=vram, unified=unified, machine=machine, report=report)
    _check_machine(other, engine, asked=asked)
    if as_grid:
        from planner.cli.grid import check_free, print_grid

        check_free(options)
    launch = launch_from(options, pasted=is_pasted(words))
    hardware = other.hardware()
    opened = Model.open(chosen_model(words, model), header_only=header_only)
    projector = open_projector(launch.mmproj, header_only=header_only) if launch.mmproj else None
    if as_grid:
        here = not other.is_asked
        if not asked and (engine or (here and _may_offload(hardware, launch))):
            hardware = _with_accelerators(hardware, engine)
        return print_grid(
            opened, launch, hardware, engine, here=here, asked=asked, as_json=as_json, projector=projector
        )
    history = _history()
    comparison = None
    if asked:
        comparison = _dry_run(opened, launch, hardware, engine, history, projector, here=not other.is_asked)
        prediction = comparison.plan
    else:
        if engine or (not other.is_asked and _may_offload(hardware, launch)):
            hardware = _with_accelerators(hardware, engine)
        launch = _with_layers(opened, launch, hardware, projector)
        prediction = _predict(opened, launch, hardware, history, projector)
    measured = history.same_launch(opened, prediction)
    if as_json:
        _print_document(opened, prediction, comparison, measured)
    else:
        _print_text(opened, prediction, comparison, measured)
    return 3 if prediction.verdict in (Verdict.TOO_BIG, Verdict.REFUSED) else 0


def _print_document(
    model: Model, prediction: MemoryPlan, comparison: DryComparison | None, measured: Run | None
) -> None:
    import json

    from planner.export.documents import plan_document

    document = {
        **plan_document(model, prediction, comparison),
        "measured_here": None if measured is None else _measured_document(measured),
        "not_counted": uncounted_options(),
    }
    click.echo(json.dumps(document, indent=2, allow_nan=False))


def _measured_document(run: Run) -> dict[str, Any]:
    return {
        "run": run.id,
        "at": run.at,
        "engine": run.engine,
        "resident_bytes": run.measured_bytes,
        "users": run.users,
        "prompt_tokens": run.prompt_tokens,
        "generated_tokens_per_s": run.generated_tokens_per_s,
        "one_generated_tokens_per_s": run.one_generated_tokens_per_s,
    }


def _measured_line(run: Run) -> str:
    together = f"{run.generated_tokens_per_s:.1f} tokens/s for {run.users} at once"
    alone = f"{run.one_generated_tokens_per_s:.1f} tokens/s for one{' alone' if run.users > 1 else ''}"
    held = "" if run.measured_bytes is None else f", {format_bytes(run.measured_bytes)} held"
    speeds = f"{together}, {alone}" if run.users > 1 else alone
    made = f"run {run.id}, {run.at[:10]}, {run.engine}"
    return labelled("Measured", f"here with this launch, after {run.prompt_tokens:,} tokens: {speeds}{held} ({made})")


def _print_text(model: Model, prediction: MemoryPlan, comparison: DryComparison | None, measured: Run | None) -> None:
    click.echo(render_plan(model, prediction))
    if measured is not None:
        click.echo(_measured_line(measured))
    if comparison is not None:
        from planner.cli.dry_run import render_dry_run

        click.echo(render_dry_run(comparison))
    if ignored := ignored_options():
        click.echo(f"Left out, since it decides no memory: {' '.join(ignored)}.", err=True)
    if uncounted := uncounted_options():
        click.echo(f"Not counted, though it may take memory: {' '.join(uncounted)}.", err=True)


def _check_machine(other: OtherMachine, engine: Path | None, *, asked: bool) -> None:
    if asked and other.has_own_devices:
        raise UsageError(f"--dry-run asks llama.cpp about this machine, and {other.description} another.", "Use one.")
    if engine is not None and not asked and other.is_asked:
        raise UsageError(f"--engine names this machine's accelerators; {other.description} another.", "Use one.")


def _with_layers(model: Model, launch: Launch, hardware: Hardware, projector: Model | None) -> Launch:
    """The launch with the layers on accelerators that `--fit` would put there, where it was left open."""
    if not launch.fit or not hardware.accelerators:
        return launch
    from planner.fit import fit_layers

    fitted = fit_layers(model, launch, hardware, projector=projector)
    if fitted != launch and fitted.n_gpu_layers != model.hyperparameters.n_layer_all + 1:
        layers = "no layer" if fitted.device == "none" else f"{fitted.n_gpu_layers} layers"
        click.echo(f"With {layers} on accelerators, about as --fit would choose (-ngl says otherwise).", err=True)
    return fitted


def _predict(model: Model, launch: Launch, hardware: Hardware, history: History, projector: Model | None) -> MemoryPlan:
    return predict(model, launch, hardware, learned=history.learned(model, hardware), projector=projector)


def _history() -> History:
    """What was measured here; nothing where it cannot be read, since a prediction needs none."""
    from planner.reconcile.history import History
    from planner.reconcile.record import Record, default_folder

    try:
        return Record(default_folder()).history()
    except PlannerError:
        return History()


def _dry_run(
    model: Model,
    launch: Launch,
    hardware: Hardware,
    engine: Path | None,
    history: History,
    projector: Model | None,
    *,
    here: bool,
) -> DryComparison:
    """The prediction held against llama.cpp's own accounting; `here` says that the machine is this one."""
    from planner.cli.dry_run import ask, find_answerer, machine_asked
    from planner.reconcile.dry_comparison import compare

    answerer = find_answerer(engine)
    if here and answerer is None and _may_offload(hardware, launch):
        hardware = _with_accelerators(hardware, None)  # no server tells of any: this says why
    elif here:
        hardware = machine_asked(answerer, hardware)
    launch = _with_layers(model, launch, hardware, projector)
    prediction = _predict(model, launch, hardware, history, projector)
    return compare(model, prediction, ask(model, launch, answerer, hardware))


def _may_offload(here: Hardware, launch: Launch) -> bool:
    """Whether it is worth the time to ask an engine for its devices."""
    return here.may_have_accelerators or any((launch.n_gpu_layers, launch.tensor_split, launch.device))


def _with_accelerators(here: Hardware, engine: Path | None) -> Hardware:
    from planner.engine.library import find_any_engine

    try:
        return here.with_accelerators(find_any_engine(engine, stands_in=False).devices)
    except EngineError as error:
        if engine is not None:
            raise
        if not here.accelerators:
            click.echo(f"Accelerators are left out of account: {error}", err=True)
        else:
            names = ", ".join(device.name for device in here.accelerators)
            click.echo(f"Planned with what the system shows ({names}), since no engine tells: {error}", err=True)
        return here
