"""`planner plan --dry-run`: who is asked, and the answer as text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from planner.cli.render import labelled, render_table
from planner.engine.dry_run import DryRun, dry_run, library_is_here, who_answers
from planner.engine.find import Engine, find_engine
from planner.errors import EngineError
from planner.hardware import Hardware
from planner.launch import Launch
from planner.memory.program import LIBRARY_NAME
from planner.model import Model
from planner.reconcile.dry_comparison import DryComparison, DryRow
from planner.sweeps import seen_by
from planner.units import format_mib, signed_mib


def find_answerer(option: Path | None) -> Engine | None:
    """The llama-server to ask; None for the library, which answers where there is no server.

    Raises EngineError where there is neither, or where the server that was named does not run.
    """
    if option == Path(LIBRARY_NAME):
        return None
    try:
        return find_engine(option)
    except EngineError:
        if option is not None or not library_is_here():
            raise
        return None


def machine_asked(engine: Engine | None, hardware: Hardware) -> Hardware:
    """The machine with the devices of who is asked."""
    return hardware if engine is None else seen_by(engine, hardware)


def only_on(hardware: Hardware, launch: Launch, engine: Engine | None) -> Launch:
    """The launch as it is asked about: of a machine without accelerators without those that are here."""
    if hardware.accelerators or (engine is not None and not engine.devices):
        return launch
    return replace(launch, device="none")


def ask(model: Model, launch: Launch, engine: Engine | None, hardware: Hardware) -> DryRun:
    """llama.cpp's own accounting of a launch on this machine."""
    launch = only_on(hardware, launch, engine)
    with who_answers(engine) as answerer:
        return dry_run(model, launch, answerer)


def render_dry_run(comparison: DryComparison) -> str:
    """The prediction beside llama.cpp's dry run: their difference, and who answered."""
    asked = comparison.dry_run
    who = asked.build if asked.build.startswith(asked.way) else f"{asked.way} {asked.build}"
    answer = f"refuses this launch: {asked.refusal}" if asked.refusal else "answered; it allocated nothing."
    lines = ["", labelled("Dry run", f"{who} {answer}")]
    if comparison.rows:
        lines = ["", render_table(_HEADER, map(_row, comparison.rows), "llrrrl"), *lines]
    lines += [labelled("Warning", warning) for warning in comparison.warnings]
    return "\n".join(lines)


_HEADER = ("MiB", "device", "predicted", "llama.cpp", "delta", "note")


def _row(row: DryRow) -> tuple[str, ...]:
    delta = row.delta_bytes
    return (
        " + ".join(row.components),
        row.device,
        format_mib(row.predicted_bytes),
        "" if row.figure is None else format_mib(row.figure.size_bytes),
        "" if delta is None else signed_mib(delta),
        row.note,
    )
