"""Where the weights lie on a machine without an accelerator, and how many bytes they take there.

Source: `src/llama-model-loader.cpp` (`create_tensor`, mmap spans), `ggml/src/ggml-cpu/repack.cpp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from planner.hardware import CPU_DEVICE, Hardware
from planner.launch import Launch
from planner.memory.plan import Allocation
from planner.model.gguf import TensorInfo
from planner.model.model import Model
from planner.units import format_mib, pad

BUFFER_ALIGNMENT = 32
"""Bytes; of every tensor in a CPU buffer (TENSOR_ALIGNMENT)."""
MAPPED_LOAD_MODES = ("auto", "mmap", "mmap+mlock")
"""Load modes that map the file instead of copying it."""

_INPUT_TABLES = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
"""Tables whose rows are looked up: nothing is multiplied with them, so they are never rearranged."""

_X86_REPACK = {
    "q4_0": ("avx2", 8),
    "q4_K": ("avx2", 8),
    "iq4_nl": ("avx2", 8),
    "mxfp4": ("avx2", 8),
    "q2_K": ("avx512f", 8),
}
_ARM_REPACK = {
    "q4_0": ("asimddp", 4),
    "iq4_nl": ("asimddp", 4),
    "mxfp4": ("asimddp", 4),
    "q8_0": ("asimddp", 4),
    "q4_K": ("asimddp", 8),
    "q5_K": ("asimddp", 8),
    "q6_K": ("asimddp", 8),
}
"""Type: the instruction set it needs, and what the number of rows must be a multiple of."""


def plan_weights(model: Model, launch: Launch, hardware: Hardware) -> tuple[Allocation, ...]:
    """The buffers of the weights: the mapped or copied file, and the rearranged copy (CPU_REPACK)."""
    processor = Processor(hardware.cpu_architecture, hardware.cpu_features) if launch.repack else None
    return _buffers(model, launch.load_mode in MAPPED_LOAD_MODES, processor)


@dataclass(frozen=True, slots=True)
class Processor:
    """What decides which weights the CPU back end rearranges."""

    architecture: str
    features: frozenset[str]

    @property
    def is_x86(self) -> bool:
        """Whether the x86 rules apply, which were checked against llama.cpp; the ARM ones were only read."""
        return self.architecture in ("x86_64", "AMD64")

    def rearranges(self, tensor: TensorInfo) -> bool:
        """Whether the tensor's type and rows suit this processor (`ggml_repack_get_optimal_repack_type`)."""
        rule = (_X86_REPACK if self.is_x86 else _ARM_REPACK).get(tensor.type.name)
        if rule is None or len(tensor.shape) < 2:
            return False
        feature, multiple = rule
        return feature in self.features and tensor.shape[1] % multiple == 0


# A prediction asks this for every launch, and the answer changes with none of its usual settings.
@lru_cache(maxsize=64)
def _buffers(model: Model, mapped: bool, processor: Processor | None) -> tuple[Allocation, ...]:
    plain: list[TensorInfo] = []
    copies: list[TensorInfo] = []
    for tensor in model.tensors:
        rearranged = processor is not None and _is_repacked(tensor, processor)
        (copies if rearranged else plain).append(tensor)
    tied = tied_output(model)
    if tied is not None and processor is not None and processor.rearranges(tied):
        copies.append(tied)
    buffers = []
    if plain:
        buffers.append(_mapped_buffer(plain) if mapped else _copied_buffer(plain))
    if copies and processor is not None:
        buffers.append(_repack_buffer(copies, processor))
    return tuple(buffers)


def _is_repacked(tensor: TensorInfo, processor: Processor) -> bool:
    return not tensor.name.startswith(_INPUT_TABLES) and processor.rearranges(tensor)


def tied_output(model: Model) -> TensorInfo | None:
    """The token table, where it serves as the output matrix too (no `output.weight` in the file)."""
    by_name = {tensor.name: tensor for tensor in model.tensors}
    return None if "output.weight" in by_name else by_name.get("token_embd.weight")


def _mapped_buffer(tensors: Sequence[TensorInfo]) -> Allocation:
    first = min(tensor.offset for tensor in tensors)
    last = max(tensor.offset + tensor.nbytes for tensor in tensors)
    return _weights(
        "CPU_Mapped",
        last - first,
        f"the file from its first to its last tensor of this kind, mapped: {last:,} - {first:,} bytes "
        "(page cache: the system can drop it)",
    )


def _copied_buffer(tensors: Sequence[TensorInfo]) -> Allocation:
    size = sum(pad(tensor.nbytes, BUFFER_ALIGNMENT) for tensor in tensors)
    return _weights("CPU", size, f"every tensor copied, each padded to {BUFFER_ALIGNMENT} bytes")


def _repack_buffer(tensors: Sequence[TensorInfo], processor: Processor) -> Allocation:
    size = sum(pad(tensor.nbytes, BUFFER_ALIGNMENT) for tensor in tensors)
    types = ", ".join(sorted({tensor.type.name for tensor in tensors}))
    buffer = _weights(
        "CPU_REPACK", size, f"{format_mib(size)} MiB of {types} weights copied and rearranged for this processor"
    )
    return buffer if processor.is_x86 else replace(buffer, certainty="estimated", low_bytes=0, high_bytes=size)


def _weights(buffer: str, size: int, reason: str) -> Allocation:
    return Allocation(
        device=CPU_DEVICE,
        component="weights",
        buffer=buffer,
        reserved_bytes=size,
        resident_bytes=size,
        certainty="exact",
        reason=reason,
    )
