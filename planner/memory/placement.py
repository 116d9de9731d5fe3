"""Which layer lies on which device, and which tensor in which buffer.

Source: `src/llama-model.cpp: llama_model_base::load_tensors` (layers), `src/llama-model-loader.cpp:
create_tensor` (tensors), `src/llama.cpp: llama_prepare_model_devices` (devices).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from planner.hardware import CPU_DEVICE, Device, Hardware
from planner.launch import Launch
from planner.model.hyperparameters import MAX_LAYERS

_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE_FFN = r"\.ffn_(up|down|gate)\."
_BLOCK = re.compile(r"^blk\.(\d+)\.")
_INPUT_TABLES = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.")
"""Tables whose rows are looked up (LLM_TENSOR_LAYER_INPUT): always on the host, never multiplied with."""
_FIRST_LAYER = ("token_embd_norm.", "per_layer_model_proj.", "per_layer_proj_norm.")
"""Tensors without a block that llama.cpp counts to the first one."""
_EVERY_LAYER = ("rope_freqs.", "rope_factors_long.", "rope_factors_short.")
"""Tensors without a block that every block uses, so that each device has a copy (TENSOR_DUPLICATED)."""
_NORM_OF_OUTPUT = ("lfm2", "lfm2moe")
"""Architectures whose `token_embd_norm` is the norm before the output matrix (LLM_TENSOR_OUTPUT_NORM_LFM2)."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices of a model's layers."""

    layers: tuple[str, ...]
    """Device of each layer, MTP blocks included, and of the output layer last."""
    cache_layers: tuple[str, ...]
    """Device of each layer's cache."""
    overrides: tuple[tuple[str, str], ...]
    """Patterns and the buffer type they move tensors to; the first that is found counts."""

    @property
    def output(self) -> str:
        """Device of the output layer."""
        return self.layers[-1]

    def override_for(self, tensor: str) -> str | None:
        """The buffer type that an override moves the tensor to, if one does."""
        return next((target for pattern, target in self.overrides if re.search(pattern, tensor)), None)

    def devices_of(self, tensor: str, architecture: str = "") -> tuple[str, ...]:
        """The devices whose buffer types are tried first for this tensor, one for each copy of it."""
        moved_to = self.override_for(tensor)
        if moved_to is not None:
            return (moved_to,)
        if is_input_table(tensor):
            return (CPU_DEVICE,)
        if tensor.startswith(_EVERY_LAYER):
            return tuple(dict.fromkeys(self.layers[:-1]))
        if tensor.startswith(_FIRST_LAYER) and architecture not in _NORM_OF_OUTPUT:
            return self.layers[:1]
        block = _BLOCK.match(tensor)
        layer = int(block[1]) if block else len(self.layers)
        return (self.layers[layer] if layer < len(self.layers) - 1 else self.output,)


def is_input_table(tensor: str) -> bool:
    """Whether rows of this tensor are looked up and nothing else."""
    return tensor.startswith(_INPUT_TABLES)


def used_devices(launch: Launch, hardware: Hardware) -> tuple[Device, ...]:
    """The accelerators that the launch uses, in llama.cpp's order."""
    devices = _named_devices(launch, hardware)
    return devices[launch.main_gpu : launch.main_gpu + 1] if launch.split_mode == "none" else devices


def _named_devices(launch: Launch, hardware: Hardware) -> tuple[Device, ...]:
    """Those of `--device` in its order; all where it is left out."""
    if launch.device is None:
        return hardware.accelerators
    return tuple(device for name in _device_names(launch) for device in hardware.nameable if device.name == name)


def _device_names(launch: Launch) -> list[str]:
    names = [] if launch.device is None else [name.strip() for name in launch.device.split(",")]
    return [name for name in names if name != "none"]


def placement_refusal(launch: Launch, hardware: Hardware) -> str:
    """Why llama.cpp would not place this launch on the machine, and the way out; empty when it would.

    Source: `common/arg.cpp` (`--device`, `--override-tensor`), `src/llama.cpp: llama_prepare_model_devices`.
    """
    known = [device.name for device in hardware.nameable]
    devices = _named_devices(launch, hardware)
    unknown = [name for name in _device_names(launch) if name not in known]
    if unknown:
        return f"llama.cpp finds no device {unknown[0]!r} here: it has {', '.join(known) or 'none but the CPU'}."
    if launch.split_mode == "none" and devices and launch.main_gpu >= len(devices):
        return f"llama.cpp refuses --main-gpu {launch.main_gpu}: there are {len(devices)} devices, counted from 0."
    return next((word for override in _overrides(launch) if (word := _override_refusal(*override, known))), "")


def _override_refusal(pattern: str, target: str, known: Sequence[str]) -> str:
    if target not in (CPU_DEVICE, *known):
        return f"llama.cpp knows no buffer type {target!r} here: it has {', '.join((CPU_DEVICE, *known))}."
    try:
        re.compile(pattern)
    except re.error as error:
        return f"{pattern!r} is no regular expression ({error}), so llama.cpp cannot look for it in tensor names."
    return ""


def place(n_layer_all: int, launch: Launch, hardware: Hardware) -> Placement:
    """The devices of all layers: the last layers and the output go to accelerators first."""
    devices = used_devices(launch, hardware)
    return _place(
        n_layer_all + 1,
        tuple(device.name for device in devices),
        _shares(launch, hardware, devices),
        -1 if launch.n_gpu_layers is None else launch.n_gpu_layers,
        launch.kv_offload,
        _overrides(launch),
    )


# A grid asks this for many launches that differ in nothing that matters here.
@lru_cache(maxsize=256)
def _place(
    count: int,
    devices: tuple[str, ...],
    shares: tuple[float, ...],
    n_gpu_layers: int,
    kv_offload: bool,
    overrides: tuple[tuple[str, str], ...],
) -> Placement:
    wanted = count if n_gpu_layers < 0 else n_gpu_layers
    on_devices = min(wanted, count) if devices else 0
    first = max(count - wanted, 0)
    bounds = _split_bounds(shares)
    layers = tuple(
        CPU_DEVICE
        if index < first or index - first >= on_devices
        else devices[_device_index(index - first, on_devices, bounds)]
        for index in range(count)
    )
    return Placement(layers, layers[:-1] if kv_offload else (CPU_DEVICE,) * (count - 1), overrides)


def _overrides(launch: Launch) -> tuple[tuple[str, str], ...]:
    # Whoever means all layers may write any number.
    overrides = list(launch.override_tensor)
    if launch.cpu_moe:
        overrides.append((_EXPERTS, CPU_DEVICE))
    overrides += [(rf"blk\.{layer}{_EXPERTS}", CPU_DEVICE) for layer in range(min(launch.n_cpu_moe, MAX_LAYERS))]
    overrides += [(rf"blk\.{layer}{_DENSE_FFN}", CPU_DEVICE) for layer in range(min(launch.n_cpu_ffn, MAX_LAYERS))]
    return tuple(overrides)


def _shares(launch: Launch, hardware: Hardware, devices: Sequence[Device]) -> tuple[float, ...]:
    """What each device gets: `--tensor-split`, else its free memory."""
    shares = launch.tensor_split[: len(devices)] + (0.0,) * (len(devices) - len(launch.tensor_split))
    if any(shares):
        return shares
    usable = tuple(float(hardware.pool_named(device.pool).usable_bytes or 0) for device in devices)
    return usable if any(usable) else (1.0,) * len(devices)


def _split_bounds(shares: Sequence[float]) -> tuple[float, ...]:
    """The upper bound of each device's share, of 1, in single precision as llama.cpp computes it."""
    bounds: list[float] = []
    total = 0.0
    for share in shares:
        total = _single(total + _single(share))
        bounds.append(total)
    return tuple(_single(bound / total) for bound in bounds) if total else ()


def _device_index(layer: int, on_devices: int, bounds: Sequence[float]) -> int:
    position = _single(layer / on_devices)
    return next((index for index, bound in enumerate(bounds) if bound > position), len(bounds) - 1)


def _single(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded
