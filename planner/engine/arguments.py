"""The one place that turns a `Launch` into llama-server arguments, for the build at hand.

Everything that decides memory is written out, also where it equals the server's default, since defaults
drift between builds. A build that does not know an argument gets it only if leaving it out means the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.errors import EngineError
from planner.launch import Launch
from planner.model.ggml_types import type_named


@dataclass(frozen=True, slots=True)
class _Argument:
    """One argument of a launch."""

    flag: str
    value: str | None = None
    omissible: bool = False
    """Whether a build without the flag does the same anyway: it is older than the feature, or it is off."""
    older: tuple[str, ...] = ()
    """How builds before the flag spelled the same."""


_OLDER_LOAD_MODES = {"none": ("--no-mmap",), "mmap": ("--mmap",), "mmap+mlock": ("--mmap", "--mlock")}
"""Before `--load-mode` (2026) each way of loading had a switch of its own."""


def server_arguments(launch: Launch, model_path: Path, flags: frozenset[str]) -> list[str]:
    """The arguments after the program's name, for a build whose `--help` lists `flags`.

    Raises EngineError naming the flag that the build lacks and the launch needs.
    """
    arguments: list[str] = []
    for argument in _arguments(launch, model_path):
        if argument.flag not in flags:
            if argument.omissible:
                continue
            if argument.older and flags.issuperset(argument.older):
                arguments += argument.older
                continue
            raise EngineError(
                f"This llama-server knows no {argument.flag}, which the launch needs.",
                "Use a newer build (--engine PATH).",
            )
        arguments.append(argument.flag)
        if argument.value is not None:
            arguments.append(argument.value)
    return arguments


def _arguments(launch: Launch, model_path: Path) -> Iterator[_Argument]:
    yield _Argument("--model", str(model_path))
    if launch.ctx_size:
        yield _Argument("--ctx-size", str(launch.ctx_size))
    if launch.parallel is not None:
        yield _Argument("--parallel", str(launch.parallel))
    if launch.parallel is not None or launch.kv_unified is not None:
        yield _Argument("--kv-unified" if launch.unified else "--no-kv-unified", omissible=launch.slots == 1)
    yield _Argument("--cache-type-k", launch.cache_type_k)
    yield _Argument("--cache-type-v", launch.cache_type_v)
    yield _Argument("--flash-attn", _flash_attention(launch))
    yield _Argument("--batch-size", str(launch.batch_size))
    yield _Argument("--ubatch-size", str(launch.ubatch_size))
    yield _Argument("--cache-ram", str(launch.cache_ram), omissible=launch.cache_ram == 0)
    yield _Argument("--ctx-checkpoints", str(launch.ctx_checkpoints), omissible=launch.ctx_checkpoints == 0)
    if launch.swa_full:
        yield _Argument("--swa-full")
    if not launch.repack:
        yield _Argument("--no-repack")
    if launch.load_mode != "auto":
        yield _Argument("--load-mode", launch.load_mode, older=_OLDER_LOAD_MODES.get(launch.load_mode, ()))
    if launch.embeddings:
        yield _Argument("--embeddings")
    if not launch.fit:
        yield _Argument("--fit", "off")
    if launch.mmproj is not None:
        yield _Argument("--mmproj", launch.mmproj)
        if not launch.mmproj_offload:
            yield _Argument("--no-mmproj-offload")
    if launch.device is not None:
        yield _Argument("--device", launch.device)
    if launch.spec_type != "none":
        yield _Argument("--spec-type", launch.spec_type)
        yield _Argument("--spec-draft-n-max", str(launch.spec_draft_n_max))
    yield from _placement_arguments(launch)


def _flash_attention(launch: Launch) -> str:
    """`auto` comes to `on` where V is quantised, which is not possible without; older builds want to be told."""
    return "on" if launch.flash_attn == "auto" and type_named(launch.cache_type_v).is_quantised else launch.flash_attn


def _placement_arguments(launch: Launch) -> Iterator[_Argument]:
    if launch.n_gpu_layers is not None:
        yield _Argument("--n-gpu-layers", str(launch.n_gpu_layers))
    if launch.split_mode != "layer":
        yield _Argument("--split-mode", launch.split_mode)
    if launch.main_gpu:
        yield _Argument("--main-gpu", str(launch.main_gpu))
    if launch.tensor_split:
        yield _Argument("--tensor-split", ",".join(f"{share:g}" for share in launch.tensor_split))
    if launch.override_tensor:
        yield _Argument("--override-tensor", ",".join(f"{name}={place}" for name, place in launch.override_tensor))
    if launch.cpu_moe:
        yield _Argument("--cpu-moe")
    if launch.n_cpu_moe:
        yield _Argument("--n-cpu-moe", str(launch.n_cpu_moe))
    if launch.n_cpu_ffn:
        yield _Argument("--n-cpu-ffn", str(launch.n_cpu_ffn))
    if not launch.kv_offload:
        yield _Argument("--no-kv-offload")
    if launch.no_host:
        yield _Argument("--no-host")
