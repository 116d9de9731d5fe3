"""Where the weights lie on a machine without an accelerator, and how many bytes they take there.

Source: `src/llama-model-loader.cpp` (`create_tensor`, mmap spans), `ggml/src/ggml-cpu/repack.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterable

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


def plan_weights(model: Model, launch: Launch, hardware: Hardware) -> list[Allocation]:
    """The buffers of the weights: the mapped or copied file, and the rearranged copy (CPU_REPACK)."""
    if not model.tensors:
        return []
    repacked = {tensor.name for tensor in model.tensors if is_repacked(tensor, launch, hardware)}
    plain = [tensor for tensor in model.tensors if tensor.name not in repacked]
    allocations = [_plain_buffer(plain, launch)] if plain else []
    copies = [tensor for tensor in model.tensors if tensor.name in repacked]
    tied = tied_output(model)
    if tied is not None and _repackable(tied, launch, hardware):
        copies.append(tied)
    if copies:
        allocations.append(_repack_buffer(copies, hardware))
    return allocations


def is_repacked(tensor: TensorInfo, launch: Launch, hardware: Hardware) -> bool:
    """Whether the CPU back end keeps this tensor rearranged instead of as it is in the file."""
    return not tensor.name.startswith(_INPUT_TABLES) and _repackable(tensor, launch, hardware)


def tied_output(model: Model) -> TensorInfo | None:
    """The token table, where it serves as the output matrix too (no `output.weight` in the file)."""
    by_name = {tensor.name: tensor for tensor in model.tensors}
    return None if "output.weight" in by_name else by_name.get("token_embd.weight")


def _repackable(tensor: TensorInfo, launch: Launch, hardware: Hardware) -> bool:
    rules = _X86_REPACK if hardware.cpu_architecture in ("x86_64", "AMD64") else _ARM_REPACK
    rule = rules.get(tensor.type.name)
    if not launch.repack or rule is None or len(tensor.shape) < 2:
        return False
    feature, multiple = rule
    return feature in hardware.cpu_features and tensor.shape[1] % multiple == 0


def _plain_buffer(tensors: Iterable[TensorInfo], launch: Launch) -> Allocation:
    if launch.load_mode in MAPPED_LOAD_MODES:
        first = min(tensor.offset for tensor in tensors)
        last = max(tensor.offset + tensor.nbytes for tensor in tensors)
        size = last - first
        buffer = "CPU_Mapped"
        reason = (
            f"the file from its first to its last tensor of this kind, mapped: {last:,} - {first:,} bytes "
            "(page cache: the system can drop it)"
        )
    else:
        size = sum(pad(tensor.nbytes, BUFFER_ALIGNMENT) for tensor in tensors)
        buffer = "CPU"
        reason = f"every tensor copied, each padded to {BUFFER_ALIGNMENT} bytes"
    return Allocation(
        device=CPU_DEVICE,
        component="weights",
        buffer=buffer,
        reserved_bytes=size,
        resident_bytes=size,
        certainty="exact",
        reason=reason,
    )


def _repack_buffer(tensors: Iterable[TensorInfo], hardware: Hardware) -> Allocation:
    size = sum(pad(tensor.nbytes, BUFFER_ALIGNMENT) for tensor in tensors)
    types = sorted({tensor.type.name for tensor in tensors})
    x86 = hardware.cpu_architecture in ("x86_64", "AMD64")
    return Allocation(
        device=CPU_DEVICE,
        component="weights",
        buffer="CPU_REPACK",
        reserved_bytes=size,
        resident_bytes=size,
        # The ARM rules were read in the source and not run.
        certainty="exact" if x86 else "estimated",
        low_bytes=None if x86 else 0,
        high_bytes=None if x86 else size,
        reason=f"{format_mib(size)} MiB of {', '.join(types)} weights copied and rearranged for this processor",
    )
