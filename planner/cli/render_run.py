"""Measured runs as text: each against its prediction, over time, with its speed; and what to use."""

from __future__ import annotations

from collections.abc import Sequence

from planner.campaign import Campaign
from planner.cli.render import labelled, launch_summary, render_table
from planner.measure import Measurement, Phase, Soak, Speed
from planner.measure.growth import Growth
from planner.measure.measurement import DevicePeak
from planner.memory import Verdict
from planner.reconcile.held import PROCESS
from planner.reconcile.reconciliation import Reconciliation, Row
from planner.sweeps import Cell, Document
from planner.units import MIB, format_bytes, format_mib, format_tokens, signed_mib

_RUN_HEADER = ("MiB", "predicted", "dry run", "measured", "delta", "cause")
_HELD_HEADER = ("MiB", "predicted", "dry run", "reserved", "measured", "delta", "cause")


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
        _resident(run),
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
        *(labelled("", f"{_on_device(device)}.") for device in measurement.devices),
    ]
    if growth is not None and measurement.soak is not None:
        parts.append(labelled("Soak", _soaked(measurement.soak, growth)))
    return "\n".join(parts)


def _resident(run: Reconciliation) -> str:
    """What the process held, and what lay on each accelerator."""
    if not run.on_devices:
        return render_table(("MiB", "predicted", "measured", "delta", "cause"), [_row(run.resident)], "lrrrl")
    table = render_table(_HELD_HEADER, map(_held_row, (run.resident, *run.on_devices)), "lrrrrrl")
    others = [
        labelled("", f"{row.component}: {row.witness}.") for row in run.on_devices if row.witness not in ("", PROCESS)
    ]
    return "\n".join([table, *others])


def _held_row(row: Row) -> tuple[str, ...]:
    name, predicted, *rest = _row(row)
    told = "" if row.dry_run_bytes is None else f"{row.dry_run_bytes // MIB:,}"
    return (name, predicted, told, "" if row.reserved_bytes is None else format_mib(row.reserved_bytes), *rest)


def _on_device(peak: DevicePeak) -> str:
    held = "what was held is not told" if peak.highest_bytes is None else f"{format_bytes(peak.highest_bytes)} at most"
    free = "" if peak.least_free_bytes is None else f", {format_bytes(peak.least_free_bytes)} free at least"
    return f"{peak.device}: {held}{free}"


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
    return (name, predicted, "" if row.dry_run_bytes is None else _dry(row.dry_run_bytes), *rest)


def _dry(size_bytes: int) -> str:
    """A dry run's figure: a llama-server prints whole MiB, the library two digits more."""
    return format_mib(size_bytes) if size_bytes % MIB else f"{size_bytes // MIB:,}"


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
        lines.append(labelled("Failed", f"{short_name(failure.cell, campaign.cells)}: {failure.error}"))
    for left in campaign.not_run:
        lines.append(labelled("Not run", f"{short_name(left.cell, campaign.cells)}: {left.plan.verdict_reason}"))
    if campaign.recommendation is None and not campaign.comparable:
        return "\n".join(lines).rstrip()
    if campaign.recommendation is None:
        return "\n".join([*lines, f"None is recommended: {_whats_wrong(campaign)}."])
    cache_type = campaign.recommendation.launch.cache_type_k
    lines.append(labelled("Use", f"the {cache_type} cache. {campaign.recommendation.reason}"))
    if campaign.recommended_command is None:
        return "\n".join([*lines, labelled("", THROUGH_LIBRARY)])
    return "\n".join([*lines, labelled("", _what_ran(campaign)), "", f"    {campaign.recommended_command}"])


def short_name(cell: Cell, cells: Sequence[Cell]) -> str:
    """What tells this cell from the others: its cache type always, its people, tokens and engine where they differ."""
    launch, engine = cell.launch, cell.engine
    parts: list[str] = [launch.cache_type_k]
    if len({(other.launch.slots, other.launch.ctx_size) for other in cells}) > 1:
        parts.append(f"{launch.slots}x{format_tokens(launch.ctx_size // launch.slots)}")
    builds = {other.engine.path: other.engine.build for other in cells}
    if len(builds) > 1:
        has_namesake = list(builds.values()).count(engine.build) > 1
        parts.append(f"{engine.build} ({engine.path})" if has_namesake else engine.build)
    return " ".join(parts)


def _whats_wrong(campaign: Campaign) -> str:
    if any(run.plan.verdict is Verdict.UNKNOWN for run in campaign.runs):
        return "how much a launch of this model needs is known in part alone"
    return "each would leave this machine too little memory"


THROUGH_LIBRARY = (
    "Measured through llama-cpp-python, so there is no command that ran: a llama-server is of another build, and may "
    "hold something else."
)


def _what_ran(campaign: Campaign) -> str:
    measured = [run.measurement for run in campaign.runs]
    ran = "ran here, with a free port, a key and a more talkative log."
    if not any(measurement.ghost for measurement in measured):
        return f"This {ran}"
    if any(measurement.stands_for is not None for measurement in measured):
        return f"A ghost of this file {ran} The file itself was not loaded."
    return f"A ghost {ran} It is gone: put the model itself in its place."
