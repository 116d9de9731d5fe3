"""Results as text for a terminal: tables of fixed columns, and nothing computed that is not in the result."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from planner.errors import ModelError
from planner.hardware import Hardware, Pool
from planner.launch import Launch
from planner.memory import Allocation, MemoryPlan
from planner.model import Model
from planner.model.gguf import LongArray
from planner.model.layout import MemoryLayout
from planner.units import format_bytes, format_mib


def render_table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    """A table; `align` has one letter per column: l or r. The last column is never padded."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for row in cells:
        padded = [
            text.rjust(width) if side == "r" else text.ljust(width)
            for text, width, side in zip(row, widths, align, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    lines.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join(lines)


_WIDEST_TEXT = 110


def render_plan(model: Model, plan: MemoryPlan) -> str:
    """One prediction: the launch, its components with their reasons, the verdict."""
    parts = [model_line(model), _launch_line(plan), ""]
    for device in plan.devices:
        if len(plan.devices) > 1:
            parts.append(f"━━ {device.name}: {format_bytes(device.total_bytes)}, {device.verdict.value}")
        parts += [render_table(_PLAN_HEADER, map(_plan_row, device.allocations), "llrrrl"), ""]
    if plan.allocations:
        parts += ["Why (sizes in MiB)", *map(_reason, plan.allocations), ""]
    parts += [labelled(label, text) for label, text in _totals(plan)]
    parts += [labelled("Note", note) for note in plan.notes]
    return "\n".join(parts)


_PLAN_HEADER = ("MiB", "buffer", "reserved", "in use", "may grow", "how sure")


def _plan_row(allocation: Allocation) -> tuple[str, ...]:
    return (
        allocation.component,
        allocation.buffer,
        format_mib(allocation.reserved_bytes),
        format_mib(allocation.resident_bytes),
        format_mib(allocation.growth_bytes) if allocation.growth_bytes else "",
        _certainty(allocation),
    )


def _reason(allocation: Allocation) -> str:
    return labelled(f"  {allocation.buffer}", allocation.reason, indent=16)


def labelled(label: str, text: str, *, indent: int = 10) -> str:
    """A label and its text, wrapped to the terminal behind the label."""
    return textwrap.fill(
        text,
        width=min(_WIDEST_TEXT, terminal_width()),
        initial_indent=f"{label:<{indent - 1}} ",
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _certainty(allocation: Allocation) -> str:
    if allocation.low_bytes is None or allocation.high_bytes is None or not allocation.reserved_bytes:
        return allocation.certainty
    percent = max(allocation.reserved_bytes - allocation.low_bytes, allocation.high_bytes - allocation.reserved_bytes)
    return f"{allocation.certainty} ±{100 * percent / allocation.reserved_bytes:.0f} %"


def _totals(plan: MemoryPlan) -> list[tuple[str, str]]:
    lines = []
    if plan.context is not None:
        for pool in plan.hardware.pools:
            usable = "unknown" if pool.usable_bytes is None else format_bytes(pool.usable_bytes)
            lines.append(("Needed", f"{format_bytes(plan.needed_bytes(pool))} of {usable} usable {pool.name} memory"))
        if plan.growth_bytes():
            lines.append(("Growth", f"up to {format_bytes(plan.growth_bytes())} more over the following days"))
    lines.append(("Verdict", f"{plan.verdict.value}: {plan.verdict_reason}"))
    return lines


def model_line(model: Model) -> str:
    """The model in one line."""
    ghost = " [ghost: no weights]" if model.is_ghost else ""
    return (
        f"{model.name}{ghost}: {model.architecture}, {format_count(model.parameters)} parameters, "
        f"{format_bytes(model.tensor_bytes)}  ({model.path})"
    )


def _launch_line(plan: MemoryPlan) -> str:
    return launch_summary(plan.launch, plan)


def launch_summary(launch: Launch, plan: MemoryPlan) -> str:
    """The launch in both vocabularies: tokens per person, and llama-server's total."""
    if plan.context is None:
        return f"cache {launch.cache_type_k}/{launch.cache_type_v}"
    slots = plan.context.n_seq_max
    people = "1 person" if slots == 1 else f"{slots} people"
    share = "sharing them" if plan.context.n_stream == 1 and slots > 1 else "each"
    per_person = plan.context.n_ctx_seq if share == "sharing them" else plan.n_ctx_slot
    return (
        f"{people}, {per_person:,} tokens {share} (llama-server: {plan.context.n_ctx:,} in total), "
        f"cache {launch.cache_type_k}/{launch.cache_type_v}"
    )


def terminal_width() -> int:
    """Columns of the terminal on standard output, or 80. (`shutil` has this too, and takes 7 ms to import.)"""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


def format_count(count: int) -> str:
    """A number of parameters as people say it: `135M`, `8.0B`."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            return f"{count / size:.1f}{letter}" if count < 10 * size else f"{count / size:.0f}{letter}"
    return str(count)


def render_hardware(hardware: Hardware) -> str:
    """The machine in few lines, and its warnings."""
    pool = hardware.host
    total = "unknown" if pool.total_bytes is None else format_bytes(pool.total_bytes)
    usable = "unknown" if pool.usable_bytes is None else format_bytes(pool.usable_bytes)
    features = " ".join(name for name in _TELLING_FEATURES if name in hardware.cpu_features)
    cores = "" if hardware.cpu_cores is None else f", {hardware.cpu_cores} cores"
    name = hardware.cpu_model or hardware.cpu_architecture
    cards = [pool for pool in hardware.pools if pool != hardware.host]
    lines = [
        f"Memory    {total}, {usable} usable now",
        *(f"{card.name[:9]:<9} {_free_of(card)}{f' ({card.label})' if card.label else ''}" for card in cards),
        f"Processor {name}{cores} ({features or 'no vector features known'})",
    ]
    return "\n".join([*lines, *(f"Warning   {warning}" for warning in hardware.warnings)])


def _free_of(pool: Pool) -> str:
    if pool.total_bytes is None or pool.usable_bytes is None:
        return "of unknown size"
    return f"{format_bytes(pool.total_bytes)}, {format_bytes(pool.usable_bytes)} usable now"


_TELLING_FEATURES = ("avx", "avx2", "avx512f", "avx_vnni", "avx512_vnni", "asimddp", "i8mm", "sve")


def render_model(model: Model, *, list_tensors: bool) -> str:
    """A header for a person."""
    rows = [
        ("Model", model.name + (" [ghost: no weights]" if model.is_ghost else "")),
        (
            "File",
            f"{model.path} (GGUF {model.header.version}, {format_bytes(model.header.file_bytes)} when complete)",
        ),
        ("Architecture", model.architecture + ("" if model.rules else " (unknown to this version)")),
        ("Parameters", f"{format_count(model.parameters)} in {len(model.tensors)} tensors"),
        ("Weights", f"{format_mib(model.tensor_bytes)} MiB ({_type_mix(model)})"),
    ]
    if model.rules is not None:
        try:
            rows += _shape_rows(model)
        except ModelError as error:
            rows.append(("Problem", str(error)))
    lines = [f"{label:<15}{text}" for label, text in rows]
    lines += ["", "Metadata", *(f"  {key} = {_value(value)}" for key, value in model.metadata.items())]
    if list_tensors:
        table = render_table(
            ("tensor", "shape", "type", "MiB"),
            ((t.name, " x ".join(map(str, t.shape)), t.type.name, format_mib(t.nbytes)) for t in model.tensors),
            "lllr",
        )
        lines += ["", table]
    return "\n".join(lines)


def _shape_rows(model: Model) -> list[tuple[str, str]]:
    shape = model.hyperparameters
    windowed = sum(shape.swa_layers)
    rows = [
        ("Trained on", f"{shape.n_ctx_train:,} tokens, vocabulary of {shape.n_vocab:,}"),
        ("Layers", f"{shape.n_layer}, each {shape.n_embd:,} wide, feed-forward {_span(shape.n_ff)}"),
        ("Heads", f"{_span(shape.n_head)} for queries, {_span(shape.n_head_kv)} for keys and values"),
        ("GQA groups", f"{_span(shape.gqa_groups)} query heads share a key head"),
        ("Head size", f"K {shape.head_k}, V {shape.head_v}"),
    ]
    if shape.is_mla:
        rows.append(("Latent", f"keys of {shape.head_k} elements are cached, and no values (MLA)"))
    if shape.n_layer < shape.n_layer_all:
        rows.append(("Ahead", f"{shape.n_layer_all - shape.n_layer} blocks predict further tokens (MTP)"))
    if windowed:
        rows.append(("Window", f"{shape.n_swa:,} tokens on {windowed} of {shape.n_layer} layers"))
    if shape.n_expert:
        rows.append(("Experts", f"{shape.n_expert}, {shape.n_expert_used} used per token"))
    rows.append(("Keeps", _kept(model.layout)))
    return rows


def _kept(layout: MemoryLayout) -> str:
    caches = [f"{cache.name} on {len(cache.layers)} layers" for cache in layout.caches if cache.layers]
    states = [f"{state.name} state on {len(state.layers)} layers" for state in layout.states]
    return ", ".join([*caches, *states]) or "nothing of the context"


def _span(values: tuple[int, ...]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _type_mix(model: Model) -> str:
    sizes: Counter[str] = Counter()
    for tensor in model.tensors:
        sizes[tensor.type.name] += tensor.nbytes
    return ", ".join(f"{name} {format_mib(size)}" for name, size in sizes.most_common()) or "no tensor"


_LONGEST_VALUE = 80


def _value(value: object) -> str:
    if isinstance(value, LongArray):
        return f"[{value.length:,} entries]"
    text = str(list(value)) if isinstance(value, tuple) else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
