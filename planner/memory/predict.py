"""`predict`: what a launch of a model will hold on a machine. Pure arithmetic, microseconds."""

from __future__ import annotations

from planner.errors import ModelError
from planner.hardware import Hardware
from planner.launch import MAX_SEQUENCES, Launch, resolve_context
from planner.memory.compute import graph_sizes, plan_compute, plan_output
from planner.memory.kv import kv_caches, kv_refusal, plan_kv
from planner.memory.plan import MemoryPlan
from planner.memory.server import plan_growth, plan_overhead
from planner.memory.weights import plan_weights
from planner.model.model import Model


def predict(
    model: Model,
    launch: Launch,
    hardware: Hardware,
    *,
    overhead_bytes: int | None = None,
    prompt_tokens: int | None = None,
) -> MemoryPlan:
    """What llama-server will hold for this launch, byte by byte.

    `overhead_bytes` is what an earlier run of this model and engine held beside its buffers.
    `prompt_tokens` says how long a prompt each slot will have read when memory is looked at; None means the
    whole context. It changes what is resident, never what is reserved.

    Always answers with a plan: a launch that llama.cpp would refuse and a model that is not understood are
    verdicts. Arguments that make no sense raised already, in `Launch`.
    """
    weights = plan_weights(model, launch, hardware)
    if model.rules is None:
        return MemoryPlan(
            launch=launch,
            hardware=hardware,
            context=None,
            allocations=weights,
            missing=(
                f"The KV cache and compute buffers of the architecture {model.architecture!r} are not known to "
                "this version; only its weights are."
            ),
        )
    try:
        shape = model.hyperparameters
    except ModelError as error:
        return MemoryPlan(
            launch=launch, hardware=hardware, context=None, allocations=weights, refusal=error.message
        )
    refusal = kv_refusal(shape, launch)
    if launch.slots > MAX_SEQUENCES:
        refusal = f"llama.cpp serves at most {MAX_SEQUENCES} slots, not {launch.slots}: use fewer."
    if refusal:
        return MemoryPlan(launch=launch, hardware=hardware, context=None, allocations=weights, refusal=refusal)
    context = resolve_context(launch, shape.n_ctx_train)
    caches = kv_caches(shape, launch, context)
    reserved = graph_sizes(shape, launch, context, caches)
    at_work = graph_sizes(shape, launch, context, caches, prompt_tokens)
    n_ctx_slot = min(context.n_ctx_seq, shape.n_ctx_train)
    return MemoryPlan(
        launch=launch,
        hardware=hardware,
        context=context,
        n_ctx_slot=n_ctx_slot,
        allocations=(
            *weights,
            *plan_kv(caches),
            plan_compute(reserved, at_work),
            plan_output(shape, launch, context),
            *plan_overhead(shape, context, overhead_bytes),
            *plan_growth(shape, launch, context, caches, prompt_tokens),
        ),
        notes=_notes(model, launch, context.n_ctx_seq, shape.n_ctx_train),
    )


def _notes(model: Model, launch: Launch, n_ctx_seq: int, n_ctx_train: int) -> tuple[str, ...]:
    notes = []
    if n_ctx_seq > n_ctx_train:
        notes.append(
            f"The model was trained on {n_ctx_train:,} tokens: llama-server gives each person no more, and the "
            f"{n_ctx_seq - n_ctx_train:,} beyond are reserved for nothing."
        )
    if not model.tensors:
        notes.append("The file holds metadata and no tensor, so its weights count as 0.")
    if model.is_ghost:
        notes.append("This is a ghost: a true header with a hole where the weights would be.")
    if launch.cache_ram < 0:
        notes.append("With --cache-ram -1 the prompt cache grows until memory is full.")
    return tuple(notes)
