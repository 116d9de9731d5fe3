"""What a recurrent layer holds at its fullest moment, tensor by tensor.

Each function follows the order in which llama.cpp allocates the tensors of one layer, and says which of them find
the place of an earlier one. Read off the graphs that llama.cpp b11434 reserves for full-size models.

Source: `src/models/mamba-base.cpp`, `delta-net-base.cpp`, `rwkv6-base.cpp`, `rwkv7-base.cpp`, `kimi-linear.cpp`;
`src/llama-graph.cpp: build_rs`; `ggml/src/ggml-alloc.c` (best fit).
"""

from __future__ import annotations

from planner.model.graph import Recurrence

_WKV_STATES = {"rwkv6": 10, "rwkv7": 15}
"""Hidden states alive at once inside the time mix, the result of the scan included."""


def recurrent_elements(layer: Recurrence, tokens: int, sequences: int) -> int:
    """Elements alive at once in one layer, beside the hidden states that every layer holds."""
    states = layer.state * sequences
    if layer.kind == "mamba":
        return _scanned(layer, tokens, sequences)
    if layer.kind == "delta":
        # The convolution with its input and output and two projections; or the scan: queries and keys repeated
        # for every head, values, the states before and after, and the result.
        convolved = 2 * layer.mixed * tokens + 2 * layer.inner * tokens
        scanned = (layer.mixed + 3 * layer.inner) * tokens + 2 * states
        return max(convolved, scanned)
    if layer.kind == "kda":
        return 6 * layer.inner * tokens + 2 * states
    # The states before the scan find a place that a hidden state left, where they are no larger.
    return _WKV_STATES[layer.kind] * layer.inner * tokens + (states if states < layer.inner * tokens else 2 * states)


def _scanned(layer: Recurrence, tokens: int, sequences: int) -> int:
    """Mamba: the projection, the convolution's input and output, and the scan with the states behind it."""
    convolved = layer.mixed * (tokens + (layer.kernel - 1) * sequences)
    scanned = layer.inner * tokens + layer.state * sequences
    # The input of the convolution is free again. What comes next is put there if it fits: the result of the scan,
    # then the states of further sequences, or the product with the skipped input.
    others = layer.state * (sequences - 1)
    beyond = scanned + (others if others > convolved else 0) if scanned > convolved else layer.inner * tokens
    return (layer.projection + layer.mixed) * tokens + convolved + beyond
