"""What the graph of a model holds beside the usual: the sizes that decide compute buffers and nothing else.

Source: `src/models/*.cpp` and `src/llama-graph.cpp`, by architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from planner.errors import ModelError
from planner.model.hyperparameters import Hyperparameters, Keys

RecurrenceKind = Literal["mamba", "delta", "kda", "rwkv6", "rwkv7"]

_BESIDE = {"command-r": 1, "cohere2": 1, "cohere2moe": 1, "plamo": 1, "phi2": 1, "gemma3n": 5}
_UNGATED = (
    "arcee bert bloom codeshell falcon gpt2 gptneox jais2 jina-bert-v2 jina-bert-v3 mpt nemotron nemotron_h "
    "nemotron_h_moe phi2 plm pockettts rwkv6 rwkv7 starcoder starcoder2 nomic-bert-moe"
).split()
_FUSED = "bloom falcon gpt2 gptneox jais mpt openelm plamo2 plamo3 qwen starcoder".split()
"""Queries, keys and values come out of one multiplication, and stay alive together."""
_HALVED = ("qwen",)
"""Their feed-forward is half as wide as the metadata say."""
_NO_FEED_FORWARD = ("mamba", "mamba2")
_EXPERTS_AS_WIDE = (
    "arctic dbrx granite granite_swa granitehybrid granitemoe hunyuan-moe jamba llama minicpm minimax-01 minimax-m2 "
    "mistral3 nomic-bert-moe olmoe phimoe"
).split()
"""Their experts are as wide as the feed-forward, whatever `expert_feed_forward_length` says."""
_NO_EXPERTS = ("ernie4_5", "paddleocr", "refact")
"""They have none, whatever the metadata say."""
_SHARED_FITS = ("bailingmoe", "granite", "granitemoe", "hunyuan-moe", "hy_v3", "qwen2moe")
"""Their shared expert's input lies where others have a gap."""
_DELTA_NET = ("qwen3next", "qwen35", "qwen35moe", "qwen4exp")
"""Their attention layers have gated queries, too."""
_MAMBA2 = ("mamba2", "falcon-h1", "granitehybrid", "plamo2", "nemotron_h", "nemotron_h_moe")
_MAMBA = ("mamba", "jamba")
_UNMIXED = ("cogvlm", "deepseek4")
"""Their batches hold tokens or embeddings (`llm_arch_supports_mixed_batch`), which takes fewer inputs."""
_RWKV: Mapping[str, RecurrenceKind] = {"rwkv6": "rwkv6", "rwkv6qwen2": "rwkv6", "rwkv7": "rwkv7", "arwkv7": "rwkv7"}
_LEAVES_VIEWS = ("mamba", "mamba2", "nemotron_h", "nemotron_h_moe")
"""Their gate, a view of the projection, is left to the device before."""
_LEAVES_SUM = ("jamba", "granitehybrid")
"""The sum at the end of a layer is left to the device behind, which needs both its parts."""
_KDA = ("kimi-linear", "kimi-k3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """The widths of a recurrent layer, in elements."""

    kind: RecurrenceKind
    inner: int
    """Of the result, per token."""
    state: int
    """Of the state, per sequence."""
    projection: int = 0
    """Of the first projection, per token: the gate, the input of the convolution, time steps."""
    mixed: int = 0
    """Of the convolution, per token."""
    kernel: int = 1
    """Tokens that it spans."""
    passed_on: tuple[int, int] | None = None
    """What crosses to a device whose first layer it is, and back, per token; None for the hidden state alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphShape:
    """Sizes in elements of one token. The defaults are those of a plain transformer."""

    architecture: str = ""
    dense_layers: int = 0
    """Layers before the first with experts, which have a plain feed-forward."""
    shared_expert: bool = False
    """Whether an expert that sees every token keeps a hidden state beside the chosen ones."""
    gated: bool = True
    """Whether the feed-forward multiplies two projections; else it has one."""
    width: int = 0
    """Of the feed-forward."""
    expert_width: int = 0
    """Of one expert; 0 where there are none."""
    fused: bool = False
    """Whether queries, keys and values are one tensor."""
    alternates: bool = False
    """Whether dense layers and those with experts take turns."""
    beside: int = 0
    """Hidden states that stay alive beside the feed-forward: one where attention starts from the same state."""
    mixed: bool = True
    """Whether one batch may hold tokens and embeddings, as in builds since October 2026 (#29622)."""
    gated_attention: bool = False
    """Whether queries come with a gate of their size."""
    index_heads: int = 0
    """Query heads of a sparse attention's indexer."""
    index_width: int = 0
    """Elements of one such head."""
    index_top_k: int = 0
    """Tokens that it picks."""
    hyper_connections: int = 1
    """Parallel copies of the hidden state (Gemma 3n has four, whatever the file says)."""
    per_layer_input: int = 0
    """Elements of the further embeddings that every layer gets (Gemma 3n and 4), of all layers."""
    recurrence: Recurrence | None = None
    """Its recurrent layers; None without."""


def read_graph(keys: Keys, shape: Hyperparameters) -> GraphShape:
    """From the metadata. What they lack counts as absent."""
    architecture = keys.architecture
    return GraphShape(
        architecture=architecture,
        dense_layers=0 if architecture == "bailingmoe" else _optional(keys, "leading_dense_block_count"),
        shared_expert=architecture not in _SHARED_FITS
        and (
            _optional(keys, "expert_shared_count") > 0
            or _optional(keys, "expert_shared_feed_forward_length") > 0
            or architecture == "llama4"
        ),
        gated=architecture not in _UNGATED,
        width=0 if architecture in _NO_FEED_FORWARD else max(shape.n_ff) // (1 + (architecture in _HALVED)),
        expert_width=_expert_width(architecture, shape),
        fused=architecture in _FUSED,
        alternates=_optional(keys, "interleave_moe_layer_step") > 1,
        beside=_BESIDE.get(architecture, 0),
        mixed=architecture not in _UNMIXED,
        gated_attention=architecture in _DELTA_NET,
        index_heads=_optional(keys, "attention.indexer.head_count"),
        index_width=_optional(keys, "attention.indexer.key_length"),
        index_top_k=_optional(keys, "attention.indexer.top_k"),
        hyper_connections=_optional(keys, "hyper_connection.count") or (4 if architecture == "gemma3n" else 1),
        per_layer_input=_per_layer_input(keys, shape),
        recurrence=_recurrence(keys, shape),
    )


def _optional(keys: Keys, key: str) -> int:
    try:
        return keys.largest(key)
    except ModelError:
        return 0


def _expert_width(architecture: str, shape: Hyperparameters) -> int:
    if not shape.n_expert or architecture in _NO_EXPERTS:
        return 0
    return max(shape.n_ff) if architecture in _EXPERTS_AS_WIDE else shape.n_ff_exp or max(shape.n_ff)


def _per_layer_input(keys: Keys, shape: Hyperparameters) -> int:
    if keys.architecture not in ("gemma3n", "gemma4"):
        return 0
    # Gemma 3n has 256 in each layer, whatever the file says (`src/models/gemma3n.cpp`).
    row = 256 if keys.architecture == "gemma3n" else _optional(keys, "embedding_length_per_layer_input")
    return row * shape.n_layer


def _recurrence(keys: Keys, shape: Hyperparameters) -> Recurrence | None:
    inner, state, groups = (_optional(keys, f"ssm.{name}") for name in ("inner_size", "state_size", "group_count"))
    kernel = max(1, _optional(keys, "ssm.conv_kernel"))
    if keys.architecture in (*_MAMBA, *_MAMBA2):
        first = keys.architecture in _MAMBA
        mixed = inner if first else inner + 2 * groups * state
        projection = inner + mixed + (0 if first else _optional(keys, "ssm.time_step_rank"))
        return Recurrence(
            kind="mamba",
            inner=inner,
            state=inner * state,
            projection=projection,
            mixed=mixed,
            kernel=kernel,
            passed_on=(projection, inner)
            if keys.architecture in _LEAVES_VIEWS
            else (shape.n_embd, 0)
            if keys.architecture in _LEAVES_SUM
            else None,
        )
    if keys.architecture in _DELTA_NET:
        return Recurrence(kind="delta", inner=inner, state=inner * state, mixed=inner + 2 * groups * state)
    if keys.architecture in _KDA:
        head = _optional(keys, "kda.head_dim")
        return Recurrence(kind="kda", inner=shape.n_head[0] * head, state=shape.n_head[0] * head * head)
    if keys.architecture in _RWKV:
        kind, n_embd = _RWKV[keys.architecture], shape.n_embd
        state = n_embd * _optional(keys, "wkv.head_size")
        # Both get the shifted tokens too; RWKV-7 also the values of the first layer.
        further = 2 if kind == "rwkv6" else 3
        return Recurrence(kind=kind, inner=n_embd, state=state, passed_on=(further * n_embd, n_embd))
    return None
