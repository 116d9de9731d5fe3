"""What the graph of a model holds beside the usual: the sizes that decide compute buffers and nothing else.

Source: `src/models/*.cpp` and `src/llama-graph.cpp`, by architecture.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import ModelError
from planner.model.hyperparameters import Hyperparameters, Keys

_BESIDE = {"command-r": 1, "cohere2": 1, "cohere2moe": 1, "plamo": 1, "gemma3n": 5}
_UNGATED = (
    "arcee bert bloom codeshell falcon gpt2 gptneox jais2 jina-bert-v2 jina-bert-v3 mpt nemotron nemotron_h "
    "nemotron_h_moe phi2 pockettts starcoder starcoder2 nomic-bert-moe"
).split()
_DELTA_NET = ("qwen3next", "qwen35", "qwen35moe", "qwen4exp")
"""Their attention layers have gated queries, too."""
_MAMBA2 = ("mamba2", "falcon-h1", "granitehybrid", "plamo2", "nemotron_h", "nemotron_h_moe")
_MAMBA = ("mamba", "jamba")
_RWKV_STATES = {"rwkv6": 10, "rwkv6qwen2": 10, "rwkv7": 15, "arwkv7": 15}
"""Hidden states alive at once inside the time mix, as llama.cpp reserved them for rwkv6-1.6b and rwkv7-1.5b."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphShape:
    """Sizes in elements of one token. The defaults are those of a plain transformer."""

    architecture: str = ""
    dense_layers: int = 0
    """Layers before the first with experts, which have a plain feed-forward."""
    shared_expert: bool = False
    """Whether an expert that sees every token runs beside the chosen ones."""
    gated: bool = True
    """Whether the feed-forward multiplies two projections; else it has one."""
    beside: int = 0
    """Hidden states that stay alive beside the feed-forward: one where attention starts from the same state."""
    gated_attention: bool = False
    """Whether queries come with a gate of their size."""
    index_heads: int = 0
    """Query heads of a sparse attention's indexer."""
    index_width: int = 0
    """Elements of one such head."""
    index_top_k: int = 0
    """Tokens that it picks."""
    hyper_connections: int = 1
    """Parallel copies of the hidden state."""
    per_layer_input: int = 0
    """Elements of the further embeddings that every layer gets (Gemma 3n and 4), of all layers."""
    recurrence: int = 0
    """Elements of one token alive at once inside a recurrent layer."""
    recurrent_state: int = 0
    """Elements of a state that are alive beside it, of each sequence."""


def read_graph(keys: Keys, shape: Hyperparameters) -> GraphShape:
    """From the metadata. What they lack counts as absent."""
    architecture = keys.architecture
    return GraphShape(
        architecture=architecture,
        dense_layers=0 if architecture == "bailingmoe" else _optional(keys, "leading_dense_block_count"),
        shared_expert=_optional(keys, "expert_shared_count") > 0
        or _optional(keys, "expert_shared_feed_forward_length") > 0
        or architecture == "llama4",
        gated=architecture not in _UNGATED,
        beside=_BESIDE.get(architecture, 0),
        gated_attention=architecture in _DELTA_NET,
        index_heads=_optional(keys, "attention.indexer.head_count"),
        index_width=_optional(keys, "attention.indexer.key_length"),
        index_top_k=_optional(keys, "attention.indexer.top_k"),
        hyper_connections=_optional(keys, "hyper_connection.count") or 1,
        per_layer_input=_per_layer_input(keys, shape),
        recurrence=_recurrence(keys, shape),
        recurrent_state=_optional(keys, "ssm.inner_size") * _optional(keys, "ssm.state_size"),
    )


def _optional(keys: Keys, key: str) -> int:
    try:
        return keys.largest(key)
    except ModelError:
        return 0


def _per_layer_input(keys: Keys, shape: Hyperparameters) -> int:
    if keys.architecture not in ("gemma3n", "gemma4"):
        return 0
    # Gemma 3n has 256 in each layer, whatever the file says (`src/models/gemma3n.cpp`).
    row = 256 if keys.architecture == "gemma3n" else _optional(keys, "embedding_length_per_layer_input")
    return row * shape.n_layer


def _recurrence(keys: Keys, shape: Hyperparameters) -> int:
    """The projection, the input and the output of the convolution, and the output of the scan."""
    inner, state = _optional(keys, "ssm.inner_size"), _optional(keys, "ssm.state_size")
    if keys.architecture in _MAMBA2:
        groups, heads = _optional(keys, "ssm.group_count"), _optional(keys, "ssm.time_step_rank")
        mixed = inner + 2 * groups * state
        return inner + mixed + heads + 2 * mixed + inner
    if keys.architecture in _DELTA_NET:
        return 2 * (inner + 2 * _optional(keys, "ssm.group_count") * state) + 2 * inner
    if keys.architecture in _MAMBA:
        return 4 * inner
    return _RWKV_STATES.get(keys.architecture, 0) * shape.n_embd
