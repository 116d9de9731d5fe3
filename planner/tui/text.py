"""Values as the app's words: only formatting, every figure comes from the plan or the run that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.engine.library import AnyEngine
from planner.errors import DoesNotFitError, PlannerError, words_of
from planner.fit import Cell, Grid, Source
from planner.hardware import Hardware
from planner.launch import Launch
from planner.memory import Allocation, MemoryPlan, Verdict
from planner.tui.choices import Choice
from planner.units import format_bytes, format_mib, format_tokens

VERDICT_WORDS = {
    Verdict.FITS: "fits",
    Verdict.TIGHT: "tight",
    Verdict.TOO_BIG: "too big",
    Verdict.REFUSED: "refused",
    Verdict.UNKNOWN: "unknown",
}


SEARCHING = "Looking for models …"
NO_GRID = "This model cannot be planned."
SEEKING_MACHINE = "looking at this machine …"
SEEKING_ENGINE = "looking for a llama-server …"
ONLY_GHOSTS = "Models: none found here, so ghosts stand in: true shapes, no weights"
GRID_TITLE = "Memory: tokens each ↓  people →"

Styled = tuple[str, str]
"""A text and its style, by the theme's names of colours."""


# The top of the screen --------------------------------------------------------------------------------------


def machine_line(hardware: Hardware) -> str:
    """Memory and processor."""
    pool = hardware.host
    total = "unknown" if pool.total_bytes is None else format_bytes(pool.total_bytes)
    usable = "an unknown part" if pool.usable_bytes is None else format_bytes(pool.usable_bytes)
    cores = "" if hardware.cpu_cores is None else f", {hardware.cpu_cores} cores"
    return f"{total} memory, {usable} usable now · {hardware.cpu_model or hardware.cpu_architecture}{cores}"


SOURCES = {
    "option": "named by --engine",
    "environment": "named by PLANNER_ENGINE",
    "path": "found on the PATH",
    "embedded": "embedded",
    "library": "no llama-server",
}


def engine_line(engine: AnyEngine | None) -> str:
    """The engine, or what still works without one."""
    if engine is None:
        return "none: predicting works; m and c need llama.cpp (or --engine PATH)"
    return f"{engine.title} · {SOURCES[engine.source]}"


# The list of models -----------------------------------------------------------------------------------------


_NAME_WIDTH = 72
_FIGURES_WIDTH = 34


def choice_lines(choices: Sequence[Choice], width: int) -> list[Styled]:
    """The rows: name, architecture, what the weights take; damaged files are marked."""
    names = min(_NAME_WIDTH, max(12, width - _FIGURES_WIDTH))
    names = min(names, max((len(choice.name) for choice in choices), default=names))
    return [_choice_line(choice, names) for choice in choices]


def _choice_line(choice: Choice, name_width: int) -> Styled:
    name = shorten(choice.name, name_width).ljust(name_width)
    if choice.model is None:
        return f"{name}  damaged", "$text-error"
    mark = "ghost" if choice.is_ghost else "cut off" if choice.problem else ""
    known = choice.model.architecture if choice.model.rules else f"{choice.model.architecture}?"
    line = f"{name}  {shorten(known, 12):<12}{format_bytes(choice.model.tensor_bytes):>10}  {mark}"
    return line.rstrip(), "$foreground"


def shorten(text: str, width: int) -> str:
    """The text in so many characters; the middle goes first, since names differ at both ends."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


# The selected cell ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a table, and the sentence that stands behind it."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table to choose a row of."""

    title: str = ""
    head: str = ""
    lines: tuple[Line, ...] = ()
    total: str = ""


def cell_title(cell: Cell) -> str:
    """`2 people × 8k, f16`."""
    people = "1 person" if cell.users == 1 else f"{cell.users} people"
    return f"{people} × {format_tokens(cell.ctx_per_user)}, {cell.cache_type}"


def launch_line(plan: MemoryPlan) -> str:
    """The launch in both vocabularies: tokens per person, and llama-server's total."""
    if plan.context is None:
        return f"cache {plan.launch.cache_type_k}"
    slots = plan.context.n_seq_max
    people = "1 person, " if slots == 1 else f"{slots} people, each "
    return f"{people}{plan.n_ctx_slot:,} tokens; llama-server: --ctx-size {plan.context.n_ctx} --parallel {slots}"


def verdict_line(plan: MemoryPlan) -> str:
    """The verdict with its sign, word and sentence."""
    return f"{plan.verdict.sign} {VERDICT_WORDS[plan.verdict]}: {plan.verdict_reason}"


_SOURCES: dict[Source, str] = {
    "formula": "By formula: compute buffers are estimated.",
    "interpolated": "Between llama.cpp's own figures for the cells around it.",
    "dry run": "llama.cpp's own figures, by a dry run.",
}


def legend(grid: Grid, *, wide: bool) -> str:
    """What the signs of a grid mean; the marks only while there are cells that bear them."""
    signs = "✓ fits   ~ tight   ✗ too big" if wide else "✓ fits ~ tight ✗ too big"
    by_formula, between = grid.count("formula"), grid.count("interpolated")
    if not wide:
        told = "≈ by formula" if by_formula else "· interpolated"
        return f"{signs}  {told}" if by_formula or between else signs
    told = f"   ≈ by formula ({by_formula})" if by_formula else ""
    told += f"   · between llama.cpp's own ({between})" if between else ""
    asked = grid.count("dry run")
    return signs + told + (f"   no mark: llama.cpp's own ({asked})" if asked else "")


def reasons(cell: Cell, reason: str, speed: str = "") -> tuple[Styled, ...]:
    """Everything that is said about a cell, the most telling first."""
    plan = cell.plan
    parts = [(verdict_line(plan), f"bold {_VERDICT_STYLES[plan.verdict]}")]
    parts += [(sentence, "$foreground") for sentence in (reason, speed) if sentence]
    said = (launch_line(plan), *(() if plan.refusal else (_SOURCES[cell.source],)), *notes(plan))
    return (*parts, *((note, "$foreground-muted") for note in said))


_VERDICT_STYLES = {
    Verdict.FITS: "$text-success",
    Verdict.TIGHT: "$text-warning",
    Verdict.TOO_BIG: "$text-error",
    Verdict.REFUSED: "$foreground",
    Verdict.UNKNOWN: "$foreground",
}


def notes(plan: MemoryPlan) -> tuple[str, ...]:
    """What to know beside the figures, and where the launch departs from llama-server's defaults."""
    usual, launch = Launch(), plan.launch
    limits = []
    if launch.cache_ram != usual.cache_ram:
        limits.append(f"--cache-ram {launch.cache_ram} (else {usual.cache_ram})")
    if launch.ctx_checkpoints != usual.ctx_checkpoints:
        limits.append(f"--ctx-checkpoints {launch.ctx_checkpoints} (else {usual.ctx_checkpoints})")
    if not (launch.cache_ram or launch.ctx_checkpoints):
        return (*plan.notes, "Nothing is kept of a conversation that has ended.")
    if limits:
        return (*plan.notes, f"So that growth stays within memory: {' and '.join(limits)}.")
    return plan.notes


COMPONENTS = {"kv": "KV cache", "prompt_cache": "prompt cache"}
"""Names for people where the component's own is not one."""


def breakdown(cell: Cell, *, wide: bool) -> Table:
    """What the cell's launch holds, one row per allocation."""
    plan = cell.plan
    header: tuple[str, ...] = ("MiB", "at start", "in use", "may grow", "sure") if wide else ("MiB", "at start", "sure")
    rows = [_allocation_row(allocation, wide=wide) for allocation in plan.allocations]
    texts = align([header, *rows], "lrrrl" if wide else "lrl")
    growth = plan.growth_bytes()
    total = f"needed {format_bytes(plan.bytes())}" + (f", later +{format_bytes(growth)}" if growth else "")
    return Table(
        title=cell_title(cell),
        head=texts[0],
        lines=tuple(
            Line(text, f"{_name(allocation)}: {allocation.reason}")
            for text, allocation in zip(texts[1:], plan.allocations, strict=True)
        ),
        total=total,
    )


def _allocation_row(allocation: Allocation, *, wide: bool) -> tuple[str, ...]:
    growth = f"+{format_mib(allocation.growth_bytes)}" if allocation.growth_bytes else ""
    reserved = format_mib(allocation.reserved_bytes)
    if not wide:
        # What only grows is told by its sign, since there is no room for a column of its own.
        figure = growth if growth and not allocation.reserved_bytes else reserved
        return _name(allocation), figure.replace(",", ""), _sure(allocation)
    return _name(allocation), reserved, format_mib(allocation.resident_bytes), growth, _sure(allocation)


def _name(allocation: Allocation) -> str:
    component = COMPONENTS.get(allocation.component, allocation.component)
    if allocation.buffer in ("KV", component, f"CPU {component}"):
        return component
    if allocation.component == "kv":
        return allocation.buffer
    return f"{component} {allocation.buffer}"


def _sure(allocation: Allocation) -> str:
    low, high, size = allocation.low_bytes, allocation.high_bytes, allocation.reserved_bytes
    if low is None or high is None or not size or allocation.certainty == "dry run":
        return allocation.certainty
    return f"±{100 * max(size - low, high - size) / size:.0f}%"


def align(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Rows as lines of fixed columns; `sides` has one letter per column, l or r."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(sides))]
    return [
        " ".join(
            text.rjust(width) if side == "r" else text.ljust(width)
            for text, width, side in zip(row, widths, sides, strict=True)
        ).rstrip()
        for row in rows
    ]


# Errors and commands ----------------------------------------------------------------------------------------


def sentence(error: PlannerError | OSError) -> str:
    """An error in the app's words: a hint that names a flag of `planner --measure` does not help here."""
    if isinstance(error, OSError):
        return words_of(error)
    if isinstance(error, DoesNotFitError):
        return f"{error.message} Choose a smaller cell."
    return str(error)


def continued(command: str, width: int) -> str:
    """The command over several lines that a shell still takes for one; unchanged where that is not safe."""
    if "'" in command or '"' in command:
        return command
    pieces = command.replace(" -", "\n-").split("\n")  # a flag stays with its value
    lines = pieces[:1]
    for piece in pieces[1:]:
        if len(lines) > 1 and len(lines[-1]) + len(piece) < width - 2:
            lines[-1] += f" {piece}"
        else:
            lines.append(f"  {piece}")
    return " \\\n".join(lines)
