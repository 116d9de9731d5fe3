"""From GGUF metadata to the hyperparameters that decide memory.

Source: `src/llama-model.cpp: llama_model_base::load_hparams` (defaults and order of reading) and
`src/llama-arch.cpp` (key names).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.errors import ModelError
from planner.model.gguf import LongArray, MetadataValue

MAX_LAYERS = 512
"""LLAMA_MAX_LAYERS: llama.cpp refuses more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperparameters:
    """The shape of a model. Per-layer values are tuples of `n_layer_all` entries, in layer order."""

    n_ctx_train: int
    """Tokens it was trained on."""
    n_embd: int
    n_layer: int
    """Layers of the model itself (the trunk)."""
    n_layer_all: int
    """With the blocks behind them that predict further tokens (MTP)."""
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
    head_k_mla: int
    """Elements of one key head before it is made latent (MLA); 0 where attention is not latent."""
    n_ff: tuple[int, ...]
    n_swa: int
    """Tokens a sliding-window layer can see; 0 without a window."""
    swa_layers: tuple[bool, ...]
    """Which layers have the window."""
    n_expert: int
    n_expert_used: int
    n_ff_exp: int
    """Width of one expert; 0 in dense models."""

    @property
    def is_mla(self) -> bool:
        """Whether attention is latent: keys alone are cached, values are a view of them."""
        return self.head_k_mla > 0

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

    def at_least(self, key: str, lowest: int) -> int:
        """A required whole number that makes no sense below `lowest`."""
        value = self.integer(key)
        if value < lowest:
            raise ModelError(f"{self.architecture}.{key} is {value}, below the smallest possible {lowest}.")
        return value

    def largest(self, key: str) -> int:
        """The highest of a number or an array of numbers; 0 where the key is absent."""
        value = self.metadata.get(f"{self.architecture}.{key}", 0)
        entries = value if isinstance(value, tuple) else (value,)
        return max((_whole(entry, f"{self.architecture}.{key}") for entry in entries), default=0)

    def per_layer(
        self, key: str, n_layer: int, default: tuple[int, ...] | None = None, *, longer: bool = False
    ) -> tuple[int, ...]:
        """One whole number per layer, stored as an array (that may be `longer`) or as one number for all."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if value is None:
            return default if default is not None else (0,) * n_layer
        if isinstance(value, tuple):
            if not longer or len(value) < n_layer:
                self._check_length(key, value, n_layer)
            return tuple(_whole(entry, f"{self.architecture}.{key}") for entry in value[:n_layer])
        return (_whole(value, f"{self.architecture}.{key}"),) * n_layer

    def flags(self, key: str, n_layer: int) -> tuple[bool, ...] | None:
        """One truth per layer, stored as an array or as one for all layers; None when the key is absent."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if value is None:
            return None
        if not isinstance(value, tuple):
            return (bool(value),) * n_layer
        self._check_length(key, value, n_layer)
        return tuple(bool(entry) for entry in value)

    def loose_flags(self, key: str, n_layer: int) -> tuple[bool, ...] | None:
        """The same from arrays alone, of any length, as llama.cpp takes some: what is missing is false."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if not isinstance(value, tuple):
            return None
        return (*(bool(entry) for entry in value[:n_layer]), *(False,) * (n_layer - len(value)))

    def _check_length(self, key: str, value: tuple[object, ...], n_layer: int) -> None:
        if len(value) != n_layer:
            # The words of llama_model_loader::get_key_or_arr, which throws.
            raise ModelError(
                f"llama.cpp refuses this file: key {self.architecture}.{key} has wrong array length; "
                f"expected {n_layer}, got {len(value)}.",
                "Convert it again with a current llama.cpp.",
            )


def read_hyperparameters(
    keys: Keys, *, window: tuple[int, tuple[bool, ...]], mla: bool, heads_everywhere: bool
) -> Hyperparameters:
    """The hyperparameters behind the metadata. Raises ModelError where llama.cpp would refuse them.

    `window` is what the architecture's rule made of the file: tokens and layers. `mla` says whether the
    architecture reads the keys that switch latent attention on, `heads_everywhere` whether it reads the sizes
    of heads even if the first layer has none.
    """
    n_layer_all, n_layer = layer_counts(keys)
    n_embd = keys.integer("embedding_length")
    n_head = keys.per_layer("attention.head_count", n_layer_all)
    head = n_embd // n_head[0] if n_head[0] else 0
    # llama.cpp reads the explicit head sizes only where the first layer has heads.
    reads_heads = n_head[0] > 0 or heads_everywhere
    head_k = keys.integer("attention.key_length", head) if reads_heads else 0
    head_v = keys.integer("attention.value_length", head) if reads_heads else 0
    n_swa, swa_layers = window
    return Hyperparameters(
        n_ctx_train=keys.at_least("context_length", 1),
        n_embd=n_embd,
        n_layer=n_layer,
        n_layer_all=n_layer_all,
        n_vocab=_vocabulary_size(keys),
        n_head=n_head,
        n_head_kv=keys.per_layer("attention.head_count_kv", n_layer_all, default=n_head),
        head_k=head_k,
        head_v=head_v,
        head_k_swa=keys.integer("attention.key_length_swa", head_k),
        head_v_swa=keys.integer("attention.value_length_swa", head_v),
        head_k_mla=_latent_head(keys) if mla else 0,
        n_ff=keys.per_layer("feed_forward_length", n_layer_all),
        n_swa=n_swa,
        swa_layers=swa_layers,
        n_expert=keys.largest("expert_count"),
        n_expert_used=keys.largest("expert_used_count"),
        n_ff_exp=keys.largest("expert_feed_forward_length"),
    )


def layer_counts(keys: Keys) -> tuple[int, int]:
    """All blocks of the file, and those of them that are the model itself (the rest predicts ahead)."""
    n_layer_all = keys.integer("block_count")
    if not 1 <= n_layer_all <= MAX_LAYERS:
        raise ModelError(f"{keys.architecture}.block_count is {n_layer_all}; llama.cpp loads 1 to {MAX_LAYERS} layers.")
    nextn = keys.integer("nextn_predict_layers", 0)
    if nextn >= n_layer_all:
        raise ModelError(f"{keys.architecture}.nextn_predict_layers is {nextn} of {n_layer_all} layers.")
    return n_layer_all, n_layer_all - nextn


def _latent_head(keys: Keys) -> int:
    # Latent attention needs both sizes; old conversions have neither.
    return keys.integer("attention.key_length_mla", 0) if keys.integer("attention.value_length_mla", 0) else 0


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
