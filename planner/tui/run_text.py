"""A measurement in the app's words: only formatting, every figure comes from the run that it is given."""

from __future__ import annotations

from planner.fit import Cell
from planner.measure import Phase, Progress
from planner.reconcile.reconciliation import UNEXPLAINED, Reconciliation, Row
from planner.tui.text import COMPONENTS, Line, Table, align, cell_title
from planner.units import format_bytes, format_mib, format_tokens, signed_mib

_STAGES: dict[Phase, str] = {
    "starting": "starting llama-server",
    "loading": "loading the model",
    "ready": "ready",
    "everyone": "everyone at once",
    "one": "one person alone",
    "stopping": "stopping",
}


_BAR_WIDTH, _WIDE_BAR_WIDTH = 12, 40


def running_title(cell: Cell) -> str:
    """`Measuring 2 × 8k f16`."""
    return f"Measuring {cell.users} × {format_tokens(cell.ctx_per_user)} {cell.cache_type}"


def progress_line(progress: Progress, elapsed_s: float, *, wide: bool) -> str:
    """Where a measurement is: bar, stage, resident memory, seconds."""
    bar_width = _WIDE_BAR_WIDTH if wide else _BAR_WIDTH
    stages = list(_STAGES)
    within = progress.done / progress.total if progress.total else 0.0
    filled = round(bar_width * (stages.index(progress.phase) + within) / len(stages))
    counted = f" {progress.done}/{progress.total}" if progress.total else ""
    memory = "" if progress.resident_bytes is None else f"  {format_bytes(progress.resident_bytes)}"
    bar = "━" * filled + "╌" * (bar_width - filled)
    return f"{bar}  {_STAGES[progress.phase]}{counted}{memory}  {elapsed_s:.0f} s"


def run_table(cell: Cell, run: Reconciliation, *, wide: bool) -> Table:
    """Prediction against measurement, one row per component and one for all resident memory."""
    rows = (*run.reserved, run.resident)
    header = ("MiB", "predicted", "measured", "delta", "outcome") if wide else ("MiB", "planned", "measured", "delta")
    texts = align([header, *(_run_row(row, wide=wide) for row in rows)], "lrrrl" if wide else "lrrr")
    return Table(
        title=f"Measured: {cell_title(cell)}",
        head=texts[0],
        lines=tuple(
            Line(text, _run_reason(row, "the process" if row is run.resident else "llama.cpp's log"))
            for text, row in zip(texts[1:], rows, strict=True)
        ),
        total=f"peak {_bytes(run.measurement.peak_bytes)} · esc: prediction",
    )


def _run_row(row: Row, *, wide: bool) -> tuple[str, ...]:
    name = COMPONENTS.get(row.component, row.component)
    if not wide:
        name = name.removeprefix("weights (").removesuffix(")")
    delta = "" if row.delta_bytes is None else signed_mib(row.delta_bytes)
    measured = "unknown" if row.measured_bytes is None else format_mib(row.measured_bytes)
    cells = (name, format_mib(row.predicted_bytes), measured, delta)
    if not wide:
        return tuple(cell.replace(",", "") for cell in cells)
    return (*cells, _outcome(row))


def _outcome(row: Row) -> str:
    if not row.cause:
        return "agrees"
    return UNEXPLAINED if row.cause == UNEXPLAINED else "explained"


def _run_reason(row: Row, witness: str) -> str:
    name = COMPONENTS.get(row.component, row.component)
    return f"{name}: {row.cause or f'the prediction and {witness} agree'}"


def speed_line(run: Reconciliation) -> str:
    """How fast people were served."""
    everyone, one = run.measurement.everyone, run.measurement.one
    alone = f"one alone {one.prompt_tokens_per_s:.0f} and {one.generated_tokens_per_s:.1f}"
    together = f"{everyone.prompt_tokens_per_s:.0f} read and {everyone.generated_tokens_per_s:.1f} written"
    return f"Tokens/s: {everyone.users} at once {together}; {alone}."


def _bytes(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else format_bytes(size_bytes)
