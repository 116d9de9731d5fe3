"""Why a reserved buffer is not what was predicted: rules that the figures at hand can prove, one function each.

A rule answers with a cause or with nothing. What none of them answers is unexplained, with its size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.engine.dry_figures import DryFigure
from planner.engine.log import BufferKind, EngineLog, LoggedCache
from planner.errors import ModelError
from planner.hardware import kind_of_device
from planner.memory import Allocation, MemoryPlan
from planner.model.ggml_types import type_named
from planner.units import format_bytes

UNEXPLAINED = "unexplained"
NOT_SAID = "this engine's log does not say"
MOVED = "as much as predicted in all, and placed otherwise"
_NEAR = 0.02
"""Two figures that are worked out in different ways and differ by no more than this fraction are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One buffer, or all of one kind on one device: predicted, and as the log has it."""

    kind: BufferKind
    device: str
    """Whose memory it takes."""
    buffer: str
    """Its type."""
    plan: MemoryPlan
    log: EngineLog
    allocations: Sequence[Allocation]
    predicted_bytes: int
    reserved_bytes: int
    dry_figure: DryFigure | None

    @property
    def delta_bytes(self) -> int:
        """Reserved less predicted."""
        return self.reserved_bytes - self.predicted_bytes


def cause_of(difference: Difference) -> str:
    """The first cause that the figures prove, else `unexplained` with the size."""
    return next((cause for rule in _RULES if (cause := rule(difference))), unexplained(difference.delta_bytes))


def unexplained(delta_bytes: int) -> str:
    """In words."""
    return f"{UNEXPLAINED}: {format_bytes(abs(delta_bytes))} {'more' if delta_bytes > 0 else 'less'} than predicted"


def beyond_driver(beside_bytes: int, predicted_bytes: int, high_bytes: int) -> str:
    """Why more lies beside llama.cpp's buffers than the most that a driver is known to take: what of it a driver can
    be, and what is left of the difference.
    """
    if high_bytes <= predicted_bytes:
        return unexplained(beside_bytes - predicted_bytes)
    most, explained, rest = map(format_bytes, (high_bytes, high_bytes - predicted_bytes, beside_bytes - high_bytes))
    return f"a driver context of up to {most} explains {explained} of it; {UNEXPLAINED}: {rest} more"


def short_of_driver(low_bytes: int) -> str:
    """Why less became less free beside llama.cpp's buffers than the least that a driver takes."""
    return (
        f"less than the least estimate of the driver's context ({format_bytes(low_bytes)}): some or all of it "
        "was there before, or another process gave memory back"
    )


def _other_context(difference: Difference) -> str:
    context, said = difference.plan.context, difference.log.context
    if context is None or difference.kind == "model":
        return ""
    for name, predicted in (
        ("n_ctx", context.n_ctx),
        ("n_seq_max", context.n_seq_max),
        ("n_ctx_seq", context.n_ctx_seq),
        ("n_ubatch", context.n_ubatch),
    ):
        if said.get(name, predicted) != predicted:
            return f"llama.cpp made {name} {said[name]:,}, not {predicted:,}"
    return ""


def _other_cache_type(difference: Difference) -> str:
    """Whether the caches have the predicted size once their types are what was asked for."""
    launch = difference.plan.launch
    caches = difference.log.caches
    if difference.kind != "kv" or not caches or len({a.device for a in difference.plan.allocations}) > 1:
        return ""
    other = sorted(
        {
            *(f"keys in {c.k_type}, not {launch.cache_type_k}" for c in caches if c.k_type != launch.cache_type_k),
            *(
                f"values in {c.v_type}, not {launch.cache_type_v}"
                for c in caches
                if c.v_bytes and c.v_type != launch.cache_type_v
            ),
        }
    )
    as_asked = [_converted(cache, launch.cache_type_k, launch.cache_type_v) for cache in caches]
    if not other or None in as_asked:
        return ""
    total = sum(size for size in as_asked if size is not None)
    if abs(total - difference.predicted_bytes) > _NEAR * difference.predicted_bytes:
        return ""
    return f"this build keeps {' and '.join(other)}"


def _converted(cache: LoggedCache, k_type: str, v_type: str) -> float | None:
    """The bytes that a cache would have in other types; None where its own are not known."""
    total = 0.0
    for size, own, wanted in ((cache.k_bytes, cache.k_type, k_type), (cache.v_bytes, cache.v_type, v_type)):
        if not size:
            continue
        try:
            total += size / _bytes_per_element(own) * _bytes_per_element(wanted)
        except ModelError:
            return None
    return total


def _bytes_per_element(cache_type: str) -> float:
    ggml_type = type_named(cache_type)
    return ggml_type.block_bytes / ggml_type.block_elements


def _dry_run_says_so(difference: Difference) -> str:
    figure = difference.dry_figure
    if figure is None or figure.holds(difference.predicted_bytes) or not figure.holds(difference.reserved_bytes):
        return ""
    return "this build's own dry run says the same: it reserves otherwise than the formula"


def _within_range(difference: Difference) -> str:
    allocations = difference.allocations
    low = sum(a.reserved_bytes if a.low_bytes is None else a.low_bytes for a in allocations)
    high = sum(a.reserved_bytes if a.high_bytes is None else a.high_bytes for a in allocations)
    if allocations and low <= difference.reserved_bytes <= high and low < high:
        return f"within the range of the estimate ({format_bytes(low)} to {format_bytes(high)})"
    return ""


def _other_repack(difference: Difference) -> str:
    if difference.buffer != "CPU_REPACK":
        return ""
    features = difference.log.cpu_features
    built_for = ", ".join(sorted(f for f in features if f.startswith(("AVX", "NEON", "DOTPROD"))))
    cause = "this engine rearranges other types than this processor could"
    return cause + (f": it is built for {built_for}" if built_for else "")


def _mapped_span(difference: Difference) -> str:
    """A mapping goes from its first tensor to its last, whatever lies between."""
    between = sum(
        a.reserved_bytes
        for a in difference.plan.allocations
        if a.component == "weights" and a.buffer != difference.buffer
    )
    if difference.buffer.endswith("_Mapped") and 0 < difference.delta_bytes <= between:
        return "the mapped span counts tensors that lie in another buffer, too"
    return ""


def dequantised_layers(plan: MemoryPlan, log: EngineLog, device: str) -> list[float]:
    """Bytes of one layer's keys and values in f16, for every cache, where flash attention copies them to that: on CUDA,
    ROCm and Metal (`ggml-cuda/fattn`). Empty where nothing is quantised, or the log does not say how large it is.
    """
    quantised = {plan.launch.cache_type_k, plan.launch.cache_type_v} - {"f32", "f16", "bf16"}
    if not quantised or kind_of_device(device) not in ("cuda", "rocm", "metal"):
        return []
    sizes = [(_converted(cache, "f16", "f16"), cache.layers) for cache in log.caches]
    return [size / layers for size, layers in sizes if size and layers]


def _dequantisation(difference: Difference) -> str:
    if difference.kind != "compute":
        return ""
    for layer in dequantised_layers(difference.plan, difference.log, difference.device):
        if abs(difference.delta_bytes - layer) <= _NEAR * layer:
            types = f"{difference.plan.launch.cache_type_k} is dequantised there"
            return f"a workspace for one layer's keys and values in f16 ({types})"
    return ""


_RULES: tuple[Callable[[Difference], str], ...] = (
    _other_context,
    _other_cache_type,
    _dry_run_says_so,
    _within_range,
    _dequantisation,
    _other_repack,
    _mapped_span,
)
