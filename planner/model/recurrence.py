"""Which layers keep a state of fixed size instead of a row per token, and how large it is.

Source: `llama_hparams::n_embd_r`, `n_embd_s` (`src/llama-hparams.cpp`), `load_arch_hparams` of each file in
`src/models/`. All state is F32, one copy per sequence.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.model.hyperparameters import Hyperparameters, Keys

LayerRule = Callable[[Keys, Hyperparameters], tuple[int, ...]]
"""From the metadata to the layers that a rule is about."""

StateRule = Callable[[Keys, Hyperparameters], int]
"""From the metadata to the elements that one layer keeps for one sequence."""


def every_layer(_keys: Keys, shape: Hyperparameters) -> tuple[int, ...]:
    """All layers of the trunk."""
    return tuple(range(shape.n_layer))


def every_block(_keys: Keys, shape: Hyperparameters) -> tuple[int, ...]:
    """All layers of the trunk, and the blocks behind it."""
    return tuple(range(shape.n_layer_all))


def without_kv_heads(_keys: Keys, shape: Hyperparameters) -> tuple[int, ...]:
    """The layers whose `head_count_kv` is 0."""
    return tuple(layer for layer in range(shape.n_layer) if not shape.n_head_kv[layer])


def without_heads_and_feed_forward(_keys: Keys, shape: Hyperparameters) -> tuple[int, ...]:
    """Nemotron-H: the layers that have neither KV heads nor a feed-forward."""
    return tuple(layer for layer in range(shape.n_layer) if not shape.n_head_kv[layer] and not shape.n_ff[layer])


def all_but_every(interval: int) -> LayerRule:
    """The layers that an array marks, else all but the last of every `full_attention_interval` layers."""

    def rule(keys: Keys, shape: Hyperparameters) -> tuple[int, ...]:
        marked = keys.flags("attention.recurrent_layers", shape.n_layer_all)
        if marked is not None:
            return tuple(layer for layer in range(shape.n_layer) if marked[layer])
        period = keys.integer("full_attention_interval", interval) or interval
        return tuple(layer for layer in range(shape.n_layer) if (layer + 1) % period)

    return rule


def rwkv_state(keys: Keys, shape: Hyperparameters) -> int:
    """Shifted tokens and the WKV matrix."""
    return shape.n_embd * (keys.integer("token_shift_count", 2) + keys.integer("wkv.head_size"))


def mamba_state(keys: Keys, _shape: Hyperparameters) -> int:
    """Mamba 1: `ssm.group_count` is not read."""
    inner = keys.integer("ssm.inner_size")
    return (keys.at_least("ssm.conv_kernel", 1) - 1) * inner + keys.integer("ssm.state_size") * inner


def mamba2_state(keys: Keys, _shape: Hyperparameters) -> int:
    """Mamba 2 and gated delta nets: the convolution covers the groups, too."""
    inner, state = keys.integer("ssm.inner_size"), keys.integer("ssm.state_size")
    groups = keys.integer("ssm.group_count", 0)
    return (keys.at_least("ssm.conv_kernel", 1) - 1) * (inner + 2 * groups * state) + state * inner


def short_convolution_state(keys: Keys, shape: Hyperparameters) -> int:
    """LFM2: the last few hidden states."""
    return shape.n_embd * (keys.at_least("shortconv.l_cache", 1) - 1)


def kda_state(keys: Keys, shape: Hyperparameters) -> int:
    """Kimi delta attention: three convolutions and one matrix per head."""
    head, heads = keys.integer("kda.head_dim"), shape.n_head[0]
    return 3 * (keys.at_least("ssm.conv_kernel", 1) - 1) * heads * head + head * head * heads


def linear_attention_state(_keys: Keys, shape: Hyperparameters) -> int:
    """MiniMax-01: one matrix per head."""
    return shape.head_k * shape.head_k * shape.n_head[0]
