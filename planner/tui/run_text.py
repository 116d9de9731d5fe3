"""A measurement or a dry run in the app's words: only formatting, every figure comes from the run that it is given."""

from __future__ import annotations

from planner.fit import Cell
from planner.hardware import CPU_DEVICE
from planner.measure import STAGES, Progress
from planner.reconcile.causes import UNEXPLAINED
from planner.reconcile.dry_comparison import DryComparison, DryRow
from planner.reconcile.reconciliation import Reconciliation, Row
from planner.tui.text import COMPONENTS, Line, Table, align, cell_title
from planner.units import MIB, format_bytes, format_mib, format_tokens, signed_mib

_BAR_WIDTH, _WIDE_BAR_WIDTH = 12, 40


def running_title(cell: Cell) -> str:
    """`Measuring 2 × 8k f16`."""
    return f"Measuring {cell.users} × {format_tokens(cell.ctx_per_user)} {cell.cache_type}"


def progress_line(progress: Progress, elapsed_s: float, *, wide: bool) -> str:
    """Where a measurement is: bar, stage, resident memory, seconds."""
    bar_width = _WIDE_BAR_WIDTH if wide else _BAR_WIDTH
    stages = list(STAGES)
    within = progress.done / progress.total if progress.total else 0.0
    filled = round(bar_width * (stages.index(progress.phase) + within) / len(stages))
    counted = f" {progress.done}/{progress.total}" if progress.total else ""
    memory = "" if progress.resident_bytes is None else f"  {format_bytes(progress.resident_bytes)}"
    bar = "━" * filled + "╌" * (bar_width - filled)
    return f"{bar}  {STAGES[progress.phase]}{counted}{memory}  {elapsed_s:.0f} s"


_NARROW_HEADER = ("MiB", "plan", "dry", "real", "delta")


def run_table(cell: Cell, run: Reconciliation, *, wide: bool) -> Table:
    """Prediction against measurement, one row per component, one for all resident memory, and one per accelerator."""
    rows = (*run.reserved, run.resident, *run.on_devices)
    header = ("MiB", "predicted", "dry run", "measured", "delta", "outcome") if wide else _NARROW_HEADER
    texts = align([header, *(_run_row(row, wide=wide) for row in rows)], "lrrrrl" if wide else "lrrrr")
    return Table(
        title=f"{'Ghost measured' if run.measurement.ghost else 'Measured'}: {cell_title(cell)}",
        head=texts[0],
        lines=tuple(
            Line(text, _run_reason(row, _witness(run, row))) for text, row in zip(texts[1:], rows, strict=True)
        ),
        total=f"peak {_bytes(run.measurement.peak_bytes)} · esc: prediction",
    )


def _witness(run: Reconciliation, row: Row) -> str:
    if row is run.resident:
        return "the process"
    return "the driver" if row in run.on_devices else "llama.cpp's log"


def _run_row(row: Row, *, wide: bool) -> tuple[str, ...]:
    told = "" if row.dry_run_bytes is None else f"{row.dry_run_bytes // MIB:,}"
    sizes = (row.predicted_bytes, row.measured_bytes, row.delta_bytes)
    predicted, measured, delta = _figures(*sizes, wide=wide)
    cells = (_row_name(row.component, wide=wide), predicted, told, measured or "unknown", delta)
    return (*cells, _outcome(row)) if wide else cells


def _row_name(component: str, *, wide: bool) -> str:
    name = COMPONENTS.get(component, component)
    return name if wide else name.removeprefix("weights (").removesuffix(")").replace("resident on", "all on")


def _figures(predicted: int, found: int | None, delta: int | None, *, wide: bool) -> tuple[str, str, str]:
    """In MiB; with one decimal where there is little room. Empty where there is no figure."""
    if wide:
        shown = "" if found is None else format_mib(found)
        return format_mib(predicted), shown, "" if delta is None else signed_mib(delta)
    shown = "" if found is None else f"{found / MIB:.1f}"
    return f"{predicted / MIB:.1f}", shown, "" if delta is None else f"{delta / MIB:+.1f}" if delta else "0.0"


def dry_table(cell: Cell, comparison: DryComparison, *, wide: bool) -> Table:
    """Prediction against llama.cpp's own accounting, one row per figure that it gives."""
    rows = comparison.rows
    told = "dry run" if wide else "dry"
    header = ("MiB", "predicted" if wide else "plan", told, "delta")
    texts = align([header, *(_dry_row(row, wide=wide) for row in rows)], "lrrr")
    return Table(
        title=f"Dry run: {cell_title(cell)}",
        head=texts[0],
        lines=tuple(Line(text, _dry_reason(row)) for text, row in zip(texts[1:], rows, strict=True)),
        total=f"{comparison.dry_run.way} · esc: prediction",
    )


def dry_sentence(comparison: DryComparison) -> str:
    """What a dry run says that is no figure: a refusal, or where the formula is off; empty where it agrees."""
    if comparison.rows:
        return " ".join(comparison.warnings)
    return comparison.plan.refusal if comparison.dry_run.refusal else " ".join(comparison.plan.notes[-1:])


def _dry_row(row: DryRow, *, wide: bool) -> tuple[str, ...]:
    name = " + ".join(COMPONENTS.get(component, component) for component in row.components)
    told = None if row.figure is None else row.figure.size_bytes
    device = "" if row.device == CPU_DEVICE else f" {row.device}"
    return (f"{name}{device}", *_figures(row.predicted_bytes, told, row.delta_bytes, wide=wide))


def _dry_reason(row: DryRow) -> str:
    name = " and ".join(row.components)
    if row.figure is None:
        return f"{name} on {row.device}: a dry run does not say"
    if row.delta_bytes == 0:
        agrees = "the prediction would be printed as llama.cpp's figure"
        return f"{name} on {row.device}: {agrees}" + (f"; {row.note}" if row.note else "")
    if row.beyond_range:
        return f"{name} on {row.device}: beyond the range of the formula; this build of llama.cpp is right about itself"
    low, high = format_bytes(row.low_bytes), format_bytes(row.high_bytes)
    return f"{name} on {row.device}: within the range of the formula, {low} to {high}"


def _outcome(row: Row) -> str:
    if not row.cause:
        return "agrees"
    return UNEXPLAINED if row.is_unexplained else "explained"


def _run_reason(row: Row, witness: str) -> str:
    name = COMPONENTS.get(row.component, row.component)
    told = f" ({row.witness})" if row.witness else ""
    return f"{name}: {row.cause or f'the prediction and {witness} agree'}{told}"


def speed_line(run: Reconciliation) -> str:
    """How fast people were served."""
    everyone, one = run.measurement.everyone, run.measurement.one
    alone = f"one alone {one.prompt_tokens_per_s:.0f} and {one.generated_tokens_per_s:.1f}"
    together = f"{everyone.prompt_tokens_per_s:.0f} read and {everyone.generated_tokens_per_s:.1f} written"
    return f"Tokens/s: {everyone.users} at once {together}; {alone}."


def _bytes(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else format_bytes(size_bytes)
