"""From GGUF metadata to the hyperparameters that decide memory.

Source: `src/llama-model.cpp: llama_model_base::load_hparams` (defaults and order of reading) and
`src/llama-arch.cpp` (key names).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.errors import ModelError
from planner.model.gguf import LongArray, MetadataValue, Scalar

MAX_LAYERS = 512
"""LLAMA_MAX_LAYERS: llama.cpp refuses more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperparameters:
    """The shape of a model. Per-layer values are tuples of `n_layer` entries, in layer order."""

    n_ctx_train: int
    """Tokens it was trained on."""
    n_embd: int
    n_layer: int
    n_vocab: int
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    """Heads that own a key and a value; query heads share them in groups (GQA)."""
    head_k: int
    """Elements of one key head on layers without a window."""
    head_v: int
    head_k_swa: int
    """Elements of one key head on sliding-window layers."""
    head_v_swa: int
    n_ff: tuple[int, ...]
    n_swa: int
    """Tokens a sliding-window layer can see; 0 without a window."""
    swa_layers: tuple[bool, ...]
    """Which layers have the window."""
    n_expert: int
    n_expert_used: int
    n_ff_exp: int
    """Width of one expert; 0 in dense models."""

    def n_embd_k_gqa(self, layer: int) -> int:
        """Elements of one token's key on this layer, all heads (`n_embd_k_gqa`)."""
        return (self.head_k_swa if self.swa_layers[layer] else self.head_k) * self.n_head_kv[layer]

    def n_embd_v_gqa(self, layer: int) -> int:
        """Elements of one token's value on this layer, all heads (`n_embd_v_gqa`)."""
        return (self.head_v_swa if self.swa_layers[layer] else self.head_v) * self.n_head_kv[layer]

    @property
    def gqa_groups(self) -> tuple[int, ...]:
        """Query heads per key head, per layer; 0 where a layer has no key."""
        return tuple(q // kv if kv else 0 for q, kv in zip(self.n_head, self.n_head_kv, strict=True))


@dataclass(frozen=True, slots=True)
class Keys:
    """Typed access to the metadata of one architecture: `integer("block_count")` reads `llama.block_count`."""

    metadata: Mapping[str, MetadataValue]
    architecture: str

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number; without a default the key is required, as in llama.cpp."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if value is None and default is not None:
            return default
        if value is None:
            raise ModelError(
                f"The metadata have no {self.architecture}.{key}, which llama.cpp requires.",
                "The file is incomplete: convert or download it again.",
            )
        if isinstance(value, tuple) and value and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ModelError(f"{self.architecture}.{key} is {value!r}, not a whole number.")
        return value

    def per_layer(self, key: str, n_layer: int, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """One whole number per layer, stored as an array or as one number for all layers."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if value is None:
            return default if default is not None else (0,) * n_layer
        if isinstance(value, tuple):
            self._require_length(key, value, n_layer)
            return tuple(_whole(entry, f"{self.architecture}.{key}") for entry in value)
        return (_whole(value, f"{self.architecture}.{key}"),) * n_layer

    def flags(self, key: str, n_layer: int) -> tuple[bool, ...] | None:
        """One truth per layer from an array; None when the key is absent or holds one number."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if not isinstance(value, tuple):
            return None
        self._require_length(key, value, n_layer)
        return tuple(bool(entry) for entry in value)

    def _require_length(self, key: str, value: tuple[Scalar, ...], n_layer: int) -> None:
        # llama_model_loader::get_key_or_arr takes neither a shorter nor a longer array.
        if len(value) != n_layer:
            raise ModelError(
                f"{self.architecture}.{key} has {len(value)} entries for {n_layer} layers; "
                "llama.cpp refuses such a file."
            )


SwaLayers = Callable[[Keys, int], tuple[int, tuple[bool, ...]]]
"""From the metadata and the layer count to the window (tokens, 0 for none) and which layers have it."""


def read_hyperparameters(
    metadata: Mapping[str, MetadataValue], architecture: str, swa_layers: SwaLayers
) -> Hyperparameters:
    """The hyperparameters behind the metadata. Raises ModelError where llama.cpp would refuse them."""
    keys = Keys(metadata, architecture)
    n_layer = keys.integer("block_count")
    if not 1 <= n_layer <= MAX_LAYERS:
        raise ModelError(f"{architecture}.block_count is {n_layer}; llama.cpp loads 1 to {MAX_LAYERS} layers.")
    n_embd = keys.integer("embedding_length")
    n_head = keys.per_layer("attention.head_count", n_layer)
    head = n_embd // n_head[0] if n_head[0] else 0
    # llama.cpp reads the explicit head sizes only where the first layer has heads.
    head_k = keys.integer("attention.key_length", head) if n_head[0] else 0
    head_v = keys.integer("attention.value_length", head) if n_head[0] else 0
    window, windowed = swa_layers(keys, n_layer)
    return Hyperparameters(
        n_ctx_train=keys.integer("context_length"),
        n_embd=n_embd,
        n_layer=n_layer,
        n_vocab=_vocabulary_size(keys),
        n_head=n_head,
        n_head_kv=keys.per_layer("attention.head_count_kv", n_layer, default=n_head),
        head_k=head_k,
        head_v=head_v,
        head_k_swa=keys.integer("attention.key_length_swa", head_k),
        head_v_swa=keys.integer("attention.value_length_swa", head_v),
        n_ff=keys.per_layer("feed_forward_length", n_layer),
        n_swa=window,
        swa_layers=windowed,
        n_expert=keys.integer("expert_count", 0),
        n_expert_used=keys.integer("expert_used_count", 0),
        n_ff_exp=keys.integer("expert_feed_forward_length", 0),
    )


def _vocabulary_size(keys: Keys) -> int:
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, LongArray):
        return tokens.length
    if isinstance(tokens, tuple):
        return len(tokens)
    return keys.integer("vocab_size", 0)


def _whole(value: object, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ModelError(f"{key} holds {value!r}, not a whole number.")
    return value
