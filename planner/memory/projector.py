"""What a projector for images (`--mmproj`) holds: its weights, and the compute buffer of its image encoder.

All tensors lie in one buffer, read and neither mapped nor rearranged. llama-server reserves the compute buffer at
start, for an image of the size that the projector is warmed up with; nothing touches it until the first image comes.

Source: `tools/mtmd/clip.cpp` (`load_hparams`, `load_tensors`, `get_dummy_batch`, `reserve_compute_meta`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from planner.errors import ModelError
from planner.hardware import CPU_DEVICE, Hardware, kind_of_device
from planner.launch import Launch
from planner.memory.backends import BACKENDS
from planner.memory.placement import used_devices
from planner.memory.plan import Allocation
from planner.memory.vision import BATCH_TOKENS, GRAPHS, LARGEST_SIDE, QWEN_MERGE, WARM_UP_SIDE, Encoder, encoder_bytes
from planner.model.hyperparameters import Keys
from planner.model.model import Model
from planner.model.projector import ARCHITECTURE
from planner.units import format_mib

_KNOWN_TENSOR = re.compile(
    r"(v\.(patch_embd|position_embd|pre_ln|post_ln|deepstack\.\d+\.(norm|fc[12])"
    r"|blk\.\d+\.(attn_(q|k|v|qkv|out)|ln[12]|ls[12]|ffn_(up|gate|down)))|mm\.\S+)\.(weight|bias)(\.1)?"
    r"|v\.class_embd|(v|model)\.image_newline"
)
"""Names that the graphs here account for. A file with another one has operations that they lack."""
_FORKS = ("feature_layer", "wa_layer_indexes", "attention.head_dim")
"""Settings under `clip.vision` that change a graph in ways that it was not held against llama.cpp with."""
_MATRICES = {
    "gemma3": ("mm.input_projection.weight",),
    "idefics3": ("mm.model.fc.weight",),
    "internvl": ("mm.model.mlp.1.weight", "mm.model.mlp.3.weight"),
}
_TWO_MATRICES = ("mm.0.weight", "mm.2.weight")
_FLOATS = {"f16": 2, "f32": 4}
_BUILDS_DIFFER = 0.1
"""The buffers are exact of build b11434; as a fraction, how far another build may be from it."""


def plan_projector(
    projector: Model, launch: Launch, hardware: Hardware, prompt_tokens: int | None
) -> tuple[list[Allocation], str]:
    """The allocations of a projector, and in one sentence what of it is not known; empty where all is.

    With `prompt_tokens` the compute buffer is not resident: prompts of so many tokens hold no image.
    """
    devices = used_devices(launch, hardware) if launch.mmproj_offload else ()
    device = devices[0].name if devices else CPU_DEVICE
    weights = _weights(projector, device)
    try:
        encoder = read_encoder(projector, flash_attention=launch.flash_attn != "off")
    except ModelError as error:
        return [weights], f"What the projector needs for an image is not told by its file: {error}"
    if encoder is None:
        kind = _kind(projector)
        about = f"of the kind {kind!r}" if kind else "that names no image encoder"
        return [weights], (
            f"What a projector {about} needs to compute is not known to this version; its weights are exact. "
            "llama-server knows it: planner plan MODEL --dry-run asks."
        )
    compute = list(_compute(encoder, device))
    if prompt_tokens is not None:
        compute = [replace(allocation, resident_bytes=0) for allocation in compute]
    return [weights, *compute], ""


def projector_refusal(projector: Model, n_embd: int) -> str:
    """Why llama.cpp would not put this projector before a model of this width; empty where it would."""
    try:
        encoder = read_encoder(projector)
    except ModelError:
        return ""
    if encoder is None or encoder.out[-1] == n_embd:
        return ""
    return (
        f"The projector gives tokens of {encoder.out[-1]:,} elements and the model has {n_embd:,}, so llama-server "
        "would not start: take the projector that was made for this model."
    )


def _weights(projector: Model, device: str) -> Allocation:
    backend = BACKENDS[kind_of_device(device)]
    tensors = projector.tensors
    size = sum(
        backend.tensor_bytes(tensor.shape[0] if tensor.shape else 1, tensor.nbytes, tensor.type) for tensor in tensors
    )
    return Allocation(
        device=device,
        component="projector",
        buffer="mmproj",
        reserved_bytes=size,
        resident_bytes=size,
        certainty="exact" if backend.verified else "estimated",
        low_bytes=None if backend.verified else projector.tensor_bytes,
        high_bytes=None if backend.verified else size + 1024 * len(tensors),
        reason=f"{len(tensors)} tensors of {projector.path.name}, read and not mapped, each padded to "
        f"{backend.alignment} bytes",
    )


def _compute(encoder: Encoder, device: str) -> Iterator[Allocation]:
    """The buffer on the device of the encoder, and that of its inputs on the host where that is another one."""
    size, inputs = encoder_bytes(encoder)
    at_most, inputs_at_most, later = _at_most(encoder, size, inputs)
    most = size
    if device != CPU_DEVICE and encoder.flash_attention:
        # Not every back end has flash attention for every width of a head.
        most = encoder_bytes(replace(encoder, flash_attention=False))[0] if _may_lack_flash(device) else size
    high = int(max(size * (1 + _BUILDS_DIFFER), most))
    yield _buffer(device, size, at_most - size, high, f"{_reason(encoder)}{later}")
    if device != CPU_DEVICE:
        reason = f"an image of {encoder.side} x {encoder.side}, before it is copied to {device}"
        yield _buffer(CPU_DEVICE, inputs, inputs_at_most - inputs, int(inputs * (1 + _BUILDS_DIFFER)), reason)


def _may_lack_flash(device: str) -> bool:
    return kind_of_device(device) not in ("cuda", "rocm", "vulkan", "metal", "rpc")


def _buffer(device: str, size: int, growth: int, high: int, reason: str) -> Allocation:
    return Allocation(
        device=device,
        component="projector",
        buffer="mmproj compute",
        reserved_bytes=size,
        resident_bytes=size,
        growth_bytes=growth,
        certainty="estimated",
        low_bytes=int(size * (1 - _BUILDS_DIFFER)),
        high_bytes=high,
        reason=reason,
    )


def _reason(encoder: Encoder) -> str:
    scores = "" if encoder.flash_attention else f", and the scores of {encoder.heads} heads"
    return (
        f"an image of {encoder.side} x {encoder.side} is {encoder.rows:,} rows: hidden states, {encoder.width:,} wide "
        f"({format_mib(encoder.rows * encoder.width * 4)} MiB each), and the feed-forward, {encoder.ffn:,} wide, as "
        f"ggml places them{scores}"
    )


def _at_most(encoder: Encoder, size: int, inputs: int) -> tuple[int, int, str]:
    """Both figures for the largest images that are computed at once, and what makes them grow so far, in words."""
    if encoder.is_dynamic:
        largest = replace(encoder, side=LARGEST_SIDE * QWEN_MERGE * encoder.patch)
        return *encoder_bytes(largest), f"; it grows for images of up to {largest.patches:,} patches"
    tiles = BATCH_TOKENS * encoder.merge**2 // encoder.patches
    if encoder.kind == "internvl" and tiles > 1:
        return tiles * size, tiles * inputs, f"; it grows where {tiles} tiles of a large image are computed at once"
    return size, inputs, ""


def _kind(projector: Model) -> str:
    names = (projector.metadata.get(f"{ARCHITECTURE}.{key}") for key in ("projector_type", "vision.projector_type"))
    return next((name for name in names if isinstance(name, str) and name), "")


def read_encoder(projector: Model, *, flash_attention: bool = True) -> Encoder | None:
    """The image encoder as the header describes it; None of a kind that was not held against llama.cpp.

    Raises ModelError where a key is missing or makes no sense.
    """
    kind, metadata = _kind(projector), projector.metadata
    if kind not in GRAPHS or metadata.get(f"{ARCHITECTURE}.has_audio_encoder") is True:
        return None
    if any(f"{ARCHITECTURE}.vision.{key}" in metadata for key in _FORKS):
        return None
    if not all(_KNOWN_TENSOR.fullmatch(tensor.name) for tensor in projector.tensors):
        return None
    keys = Keys(metadata, f"{ARCHITECTURE}.vision")
    dynamic = kind.startswith("qwen")
    patch, width, image = (keys.at_least(key, 1) for key in ("patch_size", "embedding_length", "image_size"))
    layers, merge = keys.at_least("block_count", 1), _merge(keys, kind)
    matrices = [projector.tensor(name) for name in _MATRICES.get(kind, _TWO_MATRICES)]
    patches, up = projector.tensor("v.patch_embd.weight"), projector.tensor(f"v.blk.{layers - 1}.ffn_up.weight")
    found = [matrix for matrix in matrices if matrix is not None and len(matrix.shape) > 1]
    if patches is None or up is None or len(found) != len(matrices):
        return None
    if patches.type.name not in _FLOATS or (kind == "gemma3" and found[0].type.name not in _FLOATS):
        return None
    if image < patch or (dynamic and merge != QWEN_MERGE) or projector.tensor("mm.3.weight"):
        return None
    return Encoder(
        kind=kind,
        side=WARM_UP_SIDE * QWEN_MERGE * patch if dynamic else image,
        patch=patch,
        width=width,
        ffn=up.elements // width,
        heads=keys.at_least("attention.head_count", 1),
        layers=layers,
        merge=merge,
        # The one matrix of gemma3 lies the other way.
        out=tuple(matrix.shape[0 if kind == "gemma3" else 1] for matrix in found),
        gated=projector.tensor("v.blk.0.ffn_gate.weight") is not None,
        fused=projector.tensor("v.blk.0.attn_qkv.weight") is not None,
        patch_bias=projector.tensor("v.patch_embd.bias") is not None,
        class_token=projector.tensor("v.class_embd") is not None,
        norm_before=projector.tensor("v.pre_ln.weight") is not None,
        norm_behind=projector.tensor("v.post_ln.weight") is not None,
        positions=image // patch,
        deep_layers=_deep_layers(projector),
        patch_bytes=_FLOATS[patches.type.name],
        out_bytes=_FLOATS.get(found[0].type.name, 4),
        window_pattern=keys.integer("n_wa_pattern", 0),
        flash_attention=flash_attention,
    )


def _merge(keys: Keys, kind: str) -> int:
    """Patches of each side that become one token."""
    match kind:
        case "mlp":
            return 1
        case "gemma3":
            return max(1, keys.integer("projector.scale_factor", 4))
        case "idefics3" | "internvl":
            return keys.at_least("projector.scale_factor", 2)
        case _:
            return keys.integer("spatial_merge_size", QWEN_MERGE)


def _deep_layers(projector: Model) -> frozenset[int]:
    names = (re.fullmatch(r"v\.deepstack\.(\d+)\.fc1\.weight", tensor.name) for tensor in projector.tensors)
    return frozenset(int(match[1]) for match in names if match)
