"""`predict`: what a launch of a model will hold on a machine. Pure arithmetic, microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from planner.errors import ModelError
from planner.hardware import DeviceKind, Hardware, kinds_of_devices
from planner.launch import MAX_SEQUENCES, Launch, resolve_context
from planner.memory.compute import plan_compute, plan_output
from planner.memory.draft import draft_refusal, plan_draft
from planner.memory.graph import graph_sizes
from planner.memory.kv import kv_caches, kv_refusal, plan_kv, plan_states
from planner.memory.learned import NOTHING_LEARNED, Learned
from planner.memory.placement import place, placement_refusal
from planner.memory.plan import Allocation, MemoryPlan
from planner.memory.program import LLAMA_SERVER, Program
from planner.memory.server import plan_drivers, plan_growth, plan_overhead
from planner.memory.unknown import guess_plan
from planner.memory.weights import plan_weights
from planner.model.architectures import DIFFUSION, UNSUPPORTED
from planner.model.ggml_types import type_named
from planner.model.hyperparameters import Hyperparameters
from planner.model.layout import MemoryLayout
from planner.model.model import Model


def predict(
    model: Model,
    launch: Launch,
    hardware: Hardware,
    *,
    learned: Learned = NOTHING_LEARNED,
    prompt_tokens: int | None = None,
    projector: Model | None = None,
    program: Program = LLAMA_SERVER,
) -> MemoryPlan:
    """What llama-server will hold for this launch, byte by byte.

    `learned` is what earlier runs taught of this model, machine and engine.
    `prompt_tokens` says how long a prompt each slot will have read when memory is looked at; None means the
    whole context. It changes what is resident, never what is reserved.
    `projector` is the opened file that the launch names with `mmproj`.
    `program` is what runs the launch in the place of a llama-server.

    Always answers with a plan: a launch that llama.cpp would refuse and a model that is not understood are
    verdicts. Arguments that make no sense raised already, in `Launch`.
    """
    refusal = placement_refusal(launch, hardware)  # of the machine's devices, whatever the model
    if refusal:
        return _refused(launch, hardware, refusal)
    for_images, missing = _projector(projector, launch, hardware, prompt_tokens)
    if model.rules is None:
        guess = guess_plan(model, launch, hardware)
        return replace(
            guess,
            allocations=(*guess.allocations, *for_images),
            missing=f"{guess.missing} {missing}".rstrip(),
        )
    try:
        shape, layout = model.hyperparameters, model.layout
    except ModelError as error:
        return _refused(launch, hardware, str(error))
    placement = place(shape.n_layer_all, launch, hardware)
    weights = plan_weights(model, launch, hardware, placement)
    refusal = _refusal(model, shape, layout, launch) or _projector_refusal(projector, launch, shape)
    if refusal:
        return _refused(launch, hardware, refusal, weights)
    context = resolve_context(launch, shape.n_ctx_train)
    kinds = kinds_of_devices((*placement.layers, *(allocation.device for allocation in weights)))
    caches = kv_caches(layout, launch, context)
    graph = model.graph if program.mixes_embeddings else replace(model.graph, mixed=False)
    sizes = partial(graph_sizes, shape, layout, launch, context, caches, graph=graph)
    reserved = sizes()
    at_work = reserved if prompt_tokens is None else sizes(prompt_tokens)
    compute = plan_compute(reserved, at_work, placement, launch, hardware=hardware, largest_matrix=model.largest_matrix)
    return MemoryPlan(
        launch=launch,
        hardware=hardware,
        context=context,
        n_ctx_slot=min(context.n_ctx_seq, shape.n_ctx_train),
        allocations=_in_order(
            hardware,
            [
                *weights,
                *plan_kv(caches, launch, placement),
                *plan_states(layout, context, placement),
                *plan_draft(shape, layout, graph, launch, context, placement),
                *map(learned.corrected, compute),
                plan_output(shape, launch, context),
                *for_images,
                *plan_drivers(placement, learned),
                *plan_overhead(shape, context, learned.overhead.get(kinds), program),
                *plan_growth(layout, launch, context, caches, prompt_tokens),
            ],
        ),
        missing=missing,
        notes=_notes(model, launch, context.n_ctx_seq, shape.n_ctx_train, kinds),
    )


def _refused(launch: Launch, hardware: Hardware, refusal: str, weights: tuple[Allocation, ...] = ()) -> MemoryPlan:
    return MemoryPlan(launch=launch, hardware=hardware, context=None, allocations=weights, refusal=refusal)


def _projector(
    projector: Model | None, launch: Launch, hardware: Hardware, prompt_tokens: int | None
) -> tuple[list[Allocation], str]:
    if launch.mmproj is None:
        return [], ""
    if projector is None:
        return [], "What the projector (--mmproj) holds is not known, since its file was not read."
    from planner.memory.projector import plan_projector

    return plan_projector(projector, launch, hardware, prompt_tokens)


def _projector_refusal(projector: Model | None, launch: Launch, shape: Hyperparameters) -> str:
    if not launch.mmproj or projector is None:
        return ""
    from planner.memory.projector import projector_refusal  # graphs of image encoders, which few launches need

    return projector_refusal(projector, shape.n_embd)


def _refusal(model: Model, shape: Hyperparameters, layout: MemoryLayout, launch: Launch) -> str:
    if model.architecture in UNSUPPORTED:
        return f"llama-server cannot run {model.architecture!r}: {UNSUPPORTED[model.architecture]}."
    contradicting = next(
        (
            tensor.name
            for layer in range(shape.n_layer)
            if not shape.n_head_kv[layer]
            and (tensor := model.tensor(f"blk.{layer}.attn_k.weight"))
            and not model.tensor(f"blk.{layer}.ssm_a")  # a delta net has keys, and no KV head
        ),
        "",
    )
    if contradicting:
        return (
            f"The metadata contradict the tensors: head_count_kv is 0 where {contradicting} lies. This file will "
            "not load: convert or download it again."
        )
    if launch.slots > MAX_SEQUENCES:
        return f"llama.cpp serves at most {MAX_SEQUENCES} slots, not {launch.slots}: use fewer."
    return kv_refusal(shape, layout, launch) or draft_refusal(layout, launch)


def _in_order(hardware: Hardware, allocations: list[Allocation]) -> tuple[Allocation, ...]:
    """By device in the machine's order, and within one by component as they come."""
    if len(hardware.devices) == 1:
        return tuple(allocations)
    ranks = {device.name: rank for rank, device in enumerate(hardware.devices)}
    return tuple(sorted(allocations, key=lambda allocation: ranks.get(allocation.device, len(ranks))))


_FAST_ON_CUDA = ("f16", "q8_0", "q4_0")
"""Cache types, the same for keys and values, that ordinary builds have kernels for (GGML_CUDA_FA_ALL_QUANTS off)."""


def _notes(
    model: Model, launch: Launch, n_ctx_seq: int, n_ctx_train: int, kinds: Sequence[DeviceKind]
) -> tuple[str, ...]:
    notes = []
    k_type, v_type = launch.cache_type_k, launch.cache_type_v
    quantised = any(type_named(name).is_quantised for name in (k_type, v_type))
    if quantised and (k_type != v_type or k_type not in _FAST_ON_CUDA) and {"cuda", "rocm"} & {*kinds}:
        notes.append(
            f"Ordinary CUDA builds have no flash attention for {k_type} keys with {v_type} values: it would run on "
            "the processor, many times slower. Take q8_0 or q4_0 for both."
        )
    if n_ctx_seq > n_ctx_train:
        notes.append(
            f"The model was trained on {n_ctx_train:,} tokens: llama-server gives each person no more, and the "
            f"{n_ctx_seq - n_ctx_train:,} beyond are reserved for nothing."
        )
    if not model.tensors:
        notes.append("The file holds metadata and no tensor, so its weights count as 0.")
    if model.architecture in DIFFUSION:
        notes.append("This model makes text by diffusion: llama-server loads it, and answers no request.")
    if model.is_ghost:
        notes.append("This is a ghost: a true header with a hole where the weights would be.")
    if launch.cache_ram < 0:
        notes.append("With --cache-ram -1 the prompt cache grows until memory is full.")
    return tuple(notes)
