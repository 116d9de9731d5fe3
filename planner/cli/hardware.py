"""`planner hardware`: what this machine is, and what limits it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.errors import EngineError

if TYPE_CHECKING:
    from planner.cli.hardware_page import Seen
    from planner.hardware import Hardware
    from planner.hardware.replay import Replay


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--from",
    "report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="REPORT.json",
    help="Show the machine that a report was made of.",
)
@click.option("--engine", type=click.Path(path_type=Path), metavar="PATH", help="The llama-server to ask for its view.")
@click.option("--json", "as_json", is_flag=True, help="Print the full report as one JSON document.")
def hardware(report: Path | None, engine: Path | None, as_json: bool) -> None:
    """Show this machine: its memory and who holds it, its devices, and what limits them.

    The system's view and the engine's stand side by side. The full report (--json) holds everything that was
    read and nothing private: sent along with a report of a fault, it lets anyone see the same machine with --from.
    """
    if report is not None and engine is not None:
        raise click.UsageError("--engine is asked about this machine, and --from shows another: use one.")
    seen = _replayed(report) if report is not None else _looked_at(engine)
    if as_json:
        click.echo(json.dumps(_document(seen), indent=2, allow_nan=False))
        return
    from planner.cli.hardware_page import render_page

    click.echo(render_page(seen))


def _looked_at(option: Path | None) -> Seen:
    """This machine. The engine takes longest, so that the probes run beside it."""
    import threading

    from planner.cli.hardware_page import Seen
    from planner.engine.library import find_any_engine
    from planner.hardware.hardware import detect_with_report

    found: list[tuple[Hardware, dict[str, Any]]] = []
    probes = threading.Thread(target=lambda: found.append(detect_with_report()), name="probes", daemon=True)
    probes.start()
    problem = ""
    try:
        engine = find_any_engine(option, stands_in=False)
    except EngineError as error:
        if option is not None:
            raise
        engine, problem = None, str(error)
    probes.join()
    machine, read = found[0]
    return Seen(
        system_view=machine,
        report=read,
        engine_name=engine.name if engine else None,
        engine_devices=engine.devices if engine else None,
        engine_backends=engine.backends if engine else (),
        engine_problem=problem,
    )


def _replayed(path: Path) -> Seen:
    from planner.hardware.replay import read_replay

    return _seen(read_replay(path))


def _seen(replay: Replay) -> Seen:
    from planner.cli.hardware_page import Seen

    return Seen(
        system_view=replay.system_view,
        report=replay.report,
        engine_name=replay.engine.version if replay.engine else None,
        engine_devices=replay.engine.devices if replay.engine else None,
        engine_backends=replay.engine.backends if replay.engine else (),
        engine_problem="No engine was asked when this report was made.",
    )


def _document(seen: Seen) -> dict[str, Any]:
    """The full report: made of what it holds and nothing else, so that it is as free of private names."""
    from dataclasses import asdict

    from planner.export.documents import SCHEMA_VERSION, hardware_document
    from planner.hardware.replay import full_report, replay

    full = full_report(seen.report, seen.engine_name, seen.engine_devices, seen.engine_backends)
    shared = _seen(replay(full))
    machine = shared.system_view
    return {
        "schema_version": SCHEMA_VERSION,
        "hardware": hardware_document(shared.hardware),
        "system": {
            "board": machine.board,
            "system": machine.system,
            "swap_bytes": machine.swap_bytes,
            "graphics": [asdict(graphics) for graphics in machine.graphics],
            "limits": [asdict(limit) for limit in machine.limits],
        },
        "views": [
            {
                "graphics": view.graphics.name if view.graphics else None,
                "device": view.seen.name if view.seen else None,
                "explanation": view.explanation,
            }
            for view in shared.views
        ],
        **full,
    }
