"""Which buffers the weights lie in, and how many bytes they take there.

Source: `src/llama-model-loader.cpp` (`create_tensor`, mmap spans), `src/llama-model.cpp` (`load_tensors`),
`ggml/src/ggml-cpu/repack.cpp`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from planner.hardware import CPU_DEVICE, Device, Hardware, kind_of_device
from planner.launch import Launch
from planner.memory.backends import BACKENDS
from planner.memory.placement import Placement, is_input_table, used_devices
from planner.memory.plan import Allocation
from planner.model.gguf import TensorInfo
from planner.model.model import Model
from planner.units import format_mib

MAPPED_LOAD_MODES = ("auto", "mmap", "mmap+mlock")
"""Load modes that map the file instead of copying it."""
LAZY_BYTES = 4 << 30
"""Tables that are read on demand (`--lazy-mode auto`) are larger than this."""
_LAZY_TABLE = "per_layer_token_embd.weight"
_LAZY_ARCHITECTURES = ("gemma4", "qwen4exp")
"""Architectures that mark this table to be read on demand (TENSOR_READ_LAZY)."""
_LAZY_BUFFER = "CPU_Mapped (on demand)"
_LOADED_AHEAD = {
    "deepseek32": re.compile(r"\.exp_probs_b"),
    "glm-dsa": re.compile(r"\.exp_probs_b"),
    "hy_v3": re.compile(r"\.(ffn_(up|down|gate)|exp_probs_b)"),
}
"""What these architectures load of the blocks that predict ahead (MTP), which are left in the file otherwise."""
_EXPERTS = re.compile(r"_(ch)?exps\.weight$")
"""Matrices that are multiplied by the expert (GGML_OP_MUL_MAT_ID)."""

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
        """Whether the tensor's type and rows suit this processor (`ggml_repack_get_optimal_repack_type`), and its
        use: matrices, and stacks of matrices only where each is an expert's.
        """
        rule = (_X86_REPACK if self.is_x86 else _ARM_REPACK).get(tensor.type.name)
        if rule is None or _dimensions(tensor) != (3 if _EXPERTS.search(tensor.name) else 2):
            return False
        feature, multiple = rule
        return feature in self.features and tensor.shape[1] % multiple == 0


def _dimensions(tensor: TensorInfo) -> int:
    """`ggml_n_dims`: trailing extents of 1 do not count."""
    return max((index for index, extent in enumerate(tensor.shape, start=1) if extent > 1), default=1)


@dataclass(frozen=True, slots=True)
class _Rules:
    """What decides the buffer of a tensor on the host."""

    mapped: bool
    processor: Processor | None
    """None where nothing is rearranged."""
    pinned: str
    """Buffer type of copied weights on the host, where that is pinned memory; empty where it is plain."""
    ahead: bool
    """Whether the blocks that predict further tokens are loaded, too."""


def plan_weights(model: Model, launch: Launch, hardware: Hardware, placement: Placement) -> tuple[Allocation, ...]:
    """The buffers of the weights, accelerators first: copies on devices, the mapped or copied file on the
    host, and the rearranged copy (CPU_REPACK).
    """
    # Pinned memory stands before rearranging in the order of choice; with mmap it then becomes plain memory.
    pinned = "" if launch.no_host else _pinned_buffer(used_devices(launch, hardware))
    processor = Processor(hardware.cpu_architecture, hardware.cpu_features) if launch.repack and not pinned else None
    mapped = launch.load_mode in MAPPED_LOAD_MODES
    return _buffers(model, placement, _Rules(mapped, processor, "" if mapped else pinned, launch.tokens_ahead > 0))


def _pinned_buffer(devices: Sequence[Device]) -> str:
    """The buffer type of pinned host memory: that of the first device that has one."""
    prefixes = (device.name.rstrip("0123456789") for device in devices if BACKENDS[device.kind].pinned_host)
    return next((f"{prefix}_Host" for prefix in prefixes), "")


# A prediction asks this for every launch, and the answer changes with few of its settings.
@lru_cache(maxsize=256)
def _buffers(model: Model, placement: Placement, rules: _Rules) -> tuple[Allocation, ...]:
    contents: dict[str, list[TensorInfo]] = {}
    for tensor, buffer in _placed(model, placement, rules):
        tensors = contents.setdefault(buffer, [])
        # A tensor that is created twice is there once in each buffer.
        if not tensors or tensor is not tensors[-1]:
            tensors.append(tensor)
    allocations = [_allocation(buffer, tensors, model, rules) for buffer, tensors in contents.items()]
    return tuple(sorted(allocations, key=lambda a: (a.device == CPU_DEVICE, a.device, a.buffer)))


def _placed(model: Model, placement: Placement, rules: _Rules) -> Iterator[tuple[TensorInfo, str]]:
    """Every tensor with its buffer, as often as llama.cpp creates it."""
    tied = tied_output(model)
    for tensor in model.tensors if rules.ahead else (*model.used_tensors, *_loaded_ahead(model)):
        if _is_lazy(tensor, model):
            yield tensor, _LAZY_BUFFER
            continue
        multiplied = not is_input_table(tensor.name)
        for device in placement.devices_of(tensor.name, model.architecture):
            yield tensor, _buffer_on(device, tensor, rules, multiplied=multiplied)
        if tensor is tied:
            # Once more, as the output matrix. Overrides still know it by its own name.
            device = placement.override_for(tensor.name) or placement.output
            yield tensor, _buffer_on(device, tensor, rules, multiplied=True)


def _loaded_ahead(model: Model) -> Iterator[TensorInfo]:
    pattern = _LOADED_AHEAD.get(model.architecture)
    if pattern:
        used = set(model.used_tensors)
        yield from (tensor for tensor in model.tensors if tensor not in used and pattern.search(tensor.name))


def _is_lazy(tensor: TensorInfo, model: Model) -> bool:
    return tensor.name == _LAZY_TABLE and tensor.nbytes > LAZY_BYTES and model.architecture in _LAZY_ARCHITECTURES


def _buffer_on(device: str, tensor: TensorInfo, rules: _Rules, *, multiplied: bool) -> str:
    rearranged = device == CPU_DEVICE and multiplied and rules.processor and rules.processor.rearranges(tensor)
    return "CPU_REPACK" if rearranged else device


def tied_output(model: Model) -> TensorInfo | None:
    """The token table, where it serves as the output matrix too (no `output.weight` in the file)."""
    return None if model.tensor("output.weight") else model.tensor("token_embd.weight")


def _allocation(buffer: str, tensors: Sequence[TensorInfo], model: Model, rules: _Rules) -> Allocation:
    if buffer == "CPU_REPACK":
        return _repack_buffer(tensors, rules)
    if buffer == _LAZY_BUFFER:
        return _lazy_buffer(tensors)
    backend = BACKENDS[kind_of_device(buffer)]
    mapped = rules.mapped and backend.maps_files
    allocation = _mapped_buffer(buffer, tensors, model) if mapped else _copied_buffer(buffer, tensors, rules)
    return allocation if backend.verified else _unverified(allocation, tensors)


def _lazy_buffer(tensors: Sequence[TensorInfo]) -> Allocation:
    size = sum(tensor.nbytes for tensor in tensors)
    table = _weights(
        CPU_DEVICE,
        _LAZY_BUFFER,
        size,
        f"{format_mib(size)} MiB of the file, of which only the rows of used tokens are read",
    )
    return replace(table, resident_bytes=0, on_demand=True)


def _mapped_buffer(device: str, tensors: Sequence[TensorInfo], model: Model) -> Allocation:
    spans = model.spans(tensors)
    size = sum(last - first for first, last in spans)
    parts = "" if len(spans) == 1 else f" in each of {len(spans)} files"
    return _weights(
        device,
        f"{device}_Mapped",
        size,
        f"the file from its first to its last tensor of this kind, mapped{parts}: "
        f"{' + '.join(f'{last:,} - {first:,}' for first, last in spans[:3])} bytes "
        "(page cache: the system can drop it)",
    )


def _copied_buffer(device: str, tensors: Sequence[TensorInfo], rules: _Rules) -> Allocation:
    backend = BACKENDS[kind_of_device(device)]
    size = sum(
        backend.tensor_bytes(tensor.shape[0] if tensor.shape else 1, tensor.nbytes, tensor.type) for tensor in tensors
    )
    buffer = rules.pinned if device == CPU_DEVICE and rules.pinned else device
    return _weights(device, buffer, size, f"{len(tensors)} tensors copied, each padded to {backend.alignment} bytes")


def _unverified(allocation: Allocation, tensors: Sequence[TensorInfo]) -> Allocation:
    bare = sum(tensor.nbytes for tensor in tensors)
    return replace(
        allocation,
        certainty="estimated",
        low_bytes=bare,
        high_bytes=max(allocation.reserved_bytes, bare + 1024 * len(tensors)),
        reason=f"{allocation.reason} (from llama.cpp's source, not verified on hardware)",
    )


def _repack_buffer(tensors: Sequence[TensorInfo], rules: _Rules) -> Allocation:
    backend = BACKENDS["cpu"]
    size = sum(backend.tensor_bytes(tensor.shape[0], tensor.nbytes, tensor.type) for tensor in tensors)
    types = ", ".join(sorted({tensor.type.name for tensor in tensors}))
    allocation = _weights(
        CPU_DEVICE,
        "CPU_REPACK",
        size,
        f"{format_mib(size)} MiB of {types} weights copied and rearranged for this processor",
    )
    if rules.processor is not None and rules.processor.is_x86:
        return allocation
    return replace(allocation, certainty="estimated", low_bytes=0, high_bytes=size)


def _weights(device: str, buffer: str, size: int, reason: str) -> Allocation:
    return Allocation(
        device=device,
        component="weights",
        buffer=buffer,
        reserved_bytes=size,
        resident_bytes=size,
        certainty="exact",
        reason=reason,
    )
