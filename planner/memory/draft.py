"""A second context that guesses ahead with the model's own blocks (MTP): `--spec-type draft-mtp`.

It has the slots and the context of the first, and everything that a context has: caches, of the blocks that
predict further tokens alone, a compute buffer and an output buffer. Its caches are F16 whatever
`--cache-type-k` says (`--spec-draft-type-k` is another setting).

Source: `src/llama-model.cpp: create_memory` (LLAMA_CONTEXT_TYPE_MTP), `common/speculative.cpp`.
"""

from __future__ import annotations

from dataclasses import replace

from planner.launch import Launch, ResolvedContext
from planner.memory.compute import plan_compute, plan_output
from planner.memory.graph import graph_sizes
from planner.memory.kv import KvCache, kv_caches, plan_kv
from planner.memory.peaks import GraphSizes
from planner.memory.placement import Placement
from planner.memory.plan import Allocation
from planner.model.graph import GraphShape
from planner.model.hyperparameters import Hyperparameters
from planner.model.layout import MemoryLayout


def draft_refusal(layout: MemoryLayout, launch: Launch) -> str:
    """Why llama.cpp would not guess ahead with this model, and the way out; empty when it would."""
    if launch.spec_type == "none" or layout.ahead:
        return ""
    return "This model has no blocks that predict further tokens (MTP): leave --spec-type out."


def draft_caches(layout: MemoryLayout, launch: Launch, context: ResolvedContext) -> tuple[KvCache, ...]:
    """The caches of the second context; none where nothing is guessed ahead."""
    if launch.spec_type == "none":
        return ()
    caches = kv_caches(replace(layout, caches=layout.ahead), _own(launch), context)
    return tuple(cache for cache in caches if cache.layout.layers)


def plan_draft(
    shape: Hyperparameters,
    layout: MemoryLayout,
    graph: GraphShape,
    launch: Launch,
    context: ResolvedContext,
    placement: Placement,
) -> list[Allocation]:
    """All that the second context holds, on the devices of its blocks."""
    caches = draft_caches(layout, launch, context)
    if not caches:
        return []
    own = _own(launch)
    blocks = replace(placement, layers=placement.layers[shape.n_layer :])
    # Mixed batches are for the first context (`llama_batch_allocr`), and the blocks ahead have attention.
    graph = replace(graph, mixed=False, recurrence=None)
    sizes = _one_layer(graph_sizes(shape, layout, own, context, caches, graph=graph))
    parts = (
        *plan_kv(caches, own, placement),
        *plan_compute(sizes, sizes, blocks, own),
        plan_output(shape, own, context),
    )
    return [replace(part, component="draft", buffer=f"MTP {part.buffer}") for part in parts]


def _own(launch: Launch) -> Launch:
    return replace(launch, cache_type_k="f16", cache_type_v="f16", embeddings=False)


def _one_layer(sizes: GraphSizes) -> GraphSizes:
    """A graph of one layer, which computes its feed-forward for every token. Two hidden states stay beside it, as a
    public log of Qwen3.8-27B says (b9849): 520.06 MiB are 32 of a mask, 2 x 40 and 3 x 136.
    """
    return replace(sizes, family="draft", layers=1, states=2, masks=(), picked=0)
