"""The record as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from planner.cli.render import labelled, render_table, terminal_width
from planner.cli.render_run import THROUGH_LIBRARY
from planner.memory.program import LIBRARY_NAME
from planner.reconcile.held import PROCESS
from planner.reconcile.history import History, InForce, Run, in_force
from planner.reconcile.lessons import Lessons
from planner.units import format_bytes, format_mib, format_tokens, short_bytes, signed_mib

_HEADER = ("run", "date", "model", "engine", "launch", "plan", "held", "tok/s", "verdict")
_ALIGN = "llllrrrrl"
_MODEL = _HEADER.index("model")
_LEAST_MODEL_WIDTH = 8
_SHORTEST_ID = 6


def render_history(history: History) -> str:
    """All runs, oldest first, and every learned value that is in force."""
    ids = _short_ids([run.id for run in history.runs])
    rows = [_row(run, ids[run.id]) for run in history.runs]
    parts = [
        render_table(_HEADER, _fitted(rows), _ALIGN),
        "",
        labelled("launch", "people x tokens for each, or people : tokens that they share"),
        labelled("held", "memory of the process once everyone had worked; plan is the prediction of it"),
    ]
    if any(run.forgotten for run in history.runs):
        parts.append(labelled("*", "what it taught was taken back"))
    if values := in_force(history.runs):
        header = ("learned", "of", "value", "from run")
        table = render_table(header, [_learned_row(value, ids) for value in values], "llrl")
        parts += ["", table, "", "`planner history forget RUN` takes back what a run taught."]
    return "\n".join(parts)


def _short_ids(ids: Sequence[str]) -> dict[str, str]:
    """As much of each id as tells it from all others, in one length."""
    length = next(n for n in range(_SHORTEST_ID, 99) if n >= 64 or len({i[:n] for i in ids}) == len(set(ids)))
    return {i: i[:length] for i in ids}


def _row(run: Run, short_id: str) -> list[str]:
    return [
        f"{short_id}*" if run.forgotten else short_id,
        run.at[:10],
        run.model_name,
        _short_build(run.engine),
        _launch(run),
        short_bytes(run.predicted_bytes),
        "" if run.measured_bytes is None else short_bytes(run.measured_bytes),
        f"{run.generated_tokens_per_s:.1f}",
        run.verdict,
    ]


def _short_build(build: str) -> str:
    """A commit as git shortens it; the library under its version."""
    return build.replace(LIBRARY_NAME, "library") if build.startswith(LIBRARY_NAME) else build[:7]


def _launch(run: Run) -> str:
    keys, values = run.launch.get("cache_type_k", "?"), run.launch.get("cache_type_v", "?")
    types = keys if keys == values else f"{keys}/{values}"
    slots, tokens = run.context.get("n_seq_max"), run.context.get("n_ctx_seq")
    if slots is None or tokens is None:
        return str(types)
    shared = slots > 1 and run.context.get("n_stream") == 1
    return f"{slots}{':' if shared else 'x'}{format_tokens(tokens)} {types}"


def _fitted(rows: Sequence[Sequence[str]]) -> Iterable[list[str]]:
    """The rows with names of models as long as the terminal allows."""
    widths = [max(len(text) for text in column) for column in zip(_HEADER, *rows, strict=True)]
    others = sum(widths) - widths[_MODEL] + 2 * (len(widths) - 1)
    room = max(_LEAST_MODEL_WIDTH, terminal_width() - others)
    for row in rows:
        name = row[_MODEL]
        yield [*row[:_MODEL], name if len(name) <= room else f"{name[: room - 1]}…", *row[_MODEL + 1 :]]


def _learned_row(value: InForce, ids: dict[str, str]) -> tuple[str, ...]:
    size = f"x {value.ratio:.3f}" if value.size_bytes is None else format_bytes(value.size_bytes)
    return value.what, value.of, size, ", ".join(ids[run] for run in value.runs)


def render_kept(run: Run, report: dict[str, Any], log: str) -> str:
    """Everything that was kept of one run, its log last."""
    measured, reconciliation = report.get("measured", {}), report.get("reconciliation", {})
    engine = measured.get("engine", {})
    parts = [
        labelled("Run", f"{run.id}, {run.when} UTC" + (" (what it taught was taken back)" if run.forgotten else "")),
        labelled("Model", f"{run.model_name}: {run.architecture}" if run.architecture else run.model_name),
        labelled("Engine", f"{engine.get('version', '?')} (build {run.engine})"),
        labelled("Machine", run.machine or "not kept by the version that made this record"),
        labelled("Launch", f"{_launch(run)}, predicted as {run.verdict}"),
        labelled("Command", str(report.get("command", "?") or THROUGH_LIBRARY)),
        "",
        render_table(_PLAN_HEADER, _predicted_rows(report.get("predicted", {})), "lllrrrl"),
        "",
        render_table(_ROWS_HEADER, map(_reserved_row, reconciliation.get("reserved", [])), "lrrrrl"),
        "",
        _resident(reconciliation.get("resident", {}), reconciliation.get("on_devices", [])),
        "",
        *_phases(measured.get("samples", [])),
        *(_speed(name, measured.get(name, {})) for name in ("everyone", "one")),
        labelled("Loaded", f"in {measured.get('load_seconds', '?')} s"),
        labelled("Taught", _taught(run.lessons)),
        "",
        "Log" if log else "No log was kept of this run.",
        log,
    ]
    return "\n".join(parts).rstrip("\n")


_PLAN_HEADER = ("MiB", "device", "buffer", "reserved", "in use", "may grow", "how sure")


def _predicted_rows(predicted: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            str(allocation.get("component", "?")),
            str(device.get("name", "?")),
            str(allocation.get("buffer", "?")),
            _mib(allocation.get("reserved_bytes")),
            _mib(allocation.get("resident_bytes")),
            _mib(allocation["growth_bytes"]) if allocation.get("growth_bytes") else "",
            str(allocation.get("certainty", "?")),
        )
        for device in predicted.get("devices", [])
        for allocation in device.get("allocations", [])
    ]


_ROWS_HEADER = ("MiB", "predicted", "dry run", "measured", "delta", "cause")


def _reserved_row(row: dict[str, Any]) -> tuple[str, ...]:
    told, delta = row.get("dry_run_bytes"), row.get("delta_bytes")
    return (
        str(row.get("component", "?")),
        _mib(row.get("predicted_bytes")),
        "" if told is None else _mib(told),
        _mib(row.get("measured_bytes")),
        "" if delta is None else signed_mib(delta),
        str(row.get("cause", "")),
    )


_HELD_HEADER = ("MiB", "predicted", "dry run", "reserved", "measured", "delta", "cause")


def _resident(process: dict[str, Any], on_devices: Sequence[dict[str, Any]]) -> str:
    """What the process held, and what lay on each accelerator where the run was made with one."""
    if not on_devices:
        return render_table(_ROWS_HEADER, [_reserved_row(process)], "lrrrrl")
    table = render_table(_HELD_HEADER, map(_held_row, (process, *on_devices)), "lrrrrrl")
    others = [
        labelled("", f"{row.get('component', '?')}: {row['witness']}.")
        for row in on_devices
        if row.get("witness") not in (None, "", PROCESS)
    ]
    return "\n".join([table, *others])


def _held_row(row: dict[str, Any]) -> tuple[str, ...]:
    name, predicted, told, *rest = _reserved_row(row)
    return (name, predicted, told, "" if row.get("reserved_bytes") is None else _mib(row["reserved_bytes"]), *rest)


def _mib(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else format_mib(size_bytes)


def _phases(samples: Sequence[dict[str, Any]]) -> list[str]:
    """Per phase: when it was, and between which figures resident memory lay."""
    phases: dict[str, list[dict[str, Any]]] = {}
    for sample in samples:
        phases.setdefault(str(sample.get("phase")), []).append(sample)
    rows = []
    for phase, of_phase in phases.items():
        sizes = [sample["resident_bytes"] for sample in of_phase if sample.get("resident_bytes") is not None]
        seconds = [sample.get("seconds", 0.0) for sample in of_phase]
        span = f"{min(seconds):.1f} to {max(seconds):.1f}"
        lowest, highest = (_mib(min(sizes)), _mib(max(sizes))) if sizes else ("unknown", "unknown")
        rows.append((phase, span, str(len(of_phase)), lowest, highest))
    if not rows:
        return []
    return [render_table(("phase", "seconds", "samples", "lowest MiB", "highest MiB"), rows, "lrrrr"), ""]


def _speed(name: str, speed: dict[str, Any]) -> str:
    if not speed:
        return labelled("Speed", f"{name}: not kept")
    return labelled(
        "Speed",
        f"{name} ({speed.get('users')}): {speed.get('prompt_tokens_per_s', 0.0):.1f} tokens/s read, "
        f"{speed.get('generated_tokens_per_s', 0.0):.1f} written, first after {speed.get('first_token_s', 0.0):.2f} s; "
        f"prompts of {speed.get('prompt_tokens')}, answers of {speed.get('generated_tokens')} tokens",
    )


def _taught(lessons: Lessons) -> str:
    said = []
    if lessons.overhead_bytes is not None:
        said.append(f"the process holds {format_bytes(lessons.overhead_bytes)} beside its buffers")
    for driver in lessons.drivers:
        said.append(
            f"{format_bytes(driver.size_bytes)} are taken on {driver.device} ({driver.description}, "
            f"{driver.driver or 'its driver is not known'}) beside them"
        )
    for compute in lessons.compute:
        said.append(f"compute on {compute.device} is {compute.ratio:.3f} of the formula's")
    return "; ".join(said) or "nothing: its figures determine nothing that was not known"
