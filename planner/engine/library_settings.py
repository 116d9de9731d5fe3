"""The one place that turns a `Launch` into the library's settings, as llama-server fills them.

Plain values only, for a child process that has the library (`library_child.py`, `library_serving.py`). Sources:
build b11434, `common/common.cpp: common_model_params_to_llama, common_context_params_to_llama`, `tools/server`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.launch import Launch

_GGML_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30,
}  # fmt: skip
_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_SPLIT_MODES = {"none": 0, "layer": 1}
_LOAD_MODES = {"auto": -1, "none": 0, "mmap": 1, "mlock": 2, "mmap+mlock": 3, "dio": 4}
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE = r"\.ffn_(up|down|gate)\."


def model_settings(launch: Launch, devices: Sequence[str] | None, *, dry: bool) -> dict[str, Any]:
    """`llama_model_params`. `devices` are those to use by the names of their buffers, None for all there are."""
    if launch.device is not None:
        devices = [name for name in launch.device.split(",") if name != "none"]
    return {
        "devices": None if devices is None else list(devices),
        "overrides": _overrides(launch),
        "tensor_split": list(launch.tensor_split),
        "plain": {
            "n_gpu_layers": -1 if launch.n_gpu_layers is None else launch.n_gpu_layers,
            "split_mode": _SPLIT_MODES[launch.split_mode],
            "main_gpu": launch.main_gpu,
            # What is not allocated cannot be mapped: llama.cpp asserts that.
            "load_mode": 0 if dry else _LOAD_MODES[launch.load_mode],
            "use_extra_bufts": launch.repack,
            "no_host": launch.no_host,
            "no_alloc": dry,
        },
    }


def _overrides(launch: Launch) -> list[tuple[str, str]]:
    """In the order of the arguments that `planner` writes (`common/arg.cpp` appends one after the other)."""
    overrides = list(launch.override_tensor)
    if launch.cpu_moe:
        overrides.append((_EXPERTS, "CPU"))
    overrides += [(rf"blk\.{layer}{_EXPERTS}", "CPU") for layer in range(launch.n_cpu_moe)]
    overrides += [(rf"blk\.{layer}{_DENSE}", "CPU") for layer in range(launch.n_cpu_ffn)]
    return overrides


def context_settings(launch: Launch, *, threads: int | None = None) -> dict[str, Any]:
    """`llama_context_params`; with `threads` that compute, None where nothing is computed."""
    batch = launch.ubatch_size if launch.embeddings else launch.batch_size
    slots = launch.slots
    return {
        # `--fit`, which is on by default, gives every one of so many slots the trained context.
        "trained_times": launch.trained_contexts,
        "plain": {
            "n_ctx": launch.ctx_size,
            "n_batch": batch,
            "n_ubatch": launch.ubatch_size,
            "n_seq_max": slots,
            "n_outputs_max": batch if launch.embeddings else min(batch, slots),
            "n_outputs_max_per_seq": 0 if launch.embeddings else 1,
            "type_k": _GGML_TYPES[launch.cache_type_k],
            "type_v": _GGML_TYPES[launch.cache_type_v],
            "flash_attn_type": _FLASH_ATTENTION[launch.flash_attn],
            "kv_unified": launch.unified,
            "swa_full": launch.swa_full,
            "offload_kqv": launch.kv_offload,
            "embeddings": launch.embeddings,
            **({} if threads is None else {"n_threads": threads, "n_threads_batch": threads}),
        },
    }
