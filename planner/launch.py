"""`Launch`: the settings of one llama-server run.

One value makes the prediction, the arguments of the measured run and the exported command. Its fields are
llama-server's long options with llama-server's defaults (`common/common.h`, build b11434).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from planner.errors import UsageError
from planner.units import pad

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
CACHE_TYPES: tuple[CacheType, ...] = get_args(CacheType)
"""What `--cache-type-k` and `--cache-type-v` accept."""

FlashAttention = Literal["auto", "on", "off"]
SplitMode = Literal["none", "layer"]
Speculation = Literal["none", "draft-mtp"]
LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]

AUTO_SLOTS = 4
"""Slots of a server whose `--parallel` was left out; its cache is then unified."""
MAX_SEQUENCES = 256
"""LLAMA_MAX_SEQ."""
LARGEST_SHARE = 1e30
"""Of `--tensor-split`: the sum of all shares is still a number in single precision."""
LARGEST_NUMBER = 2**31 - 1
"""Of every option that is a number (`common/arg.cpp` reads them by `std::stoi`)."""
CONTEXT_MULTIPLE = 256
"""llama.cpp rounds every context up to a multiple of this many tokens."""

_SMALLEST = {
    "ctx_size": 0,
    "parallel": 1,
    "batch_size": 1,
    "ubatch_size": 1,
    "cache_ram": -1,
    "ctx_checkpoints": 0,
    "main_gpu": 0,
    "n_gpu_layers": -(2**31),
    "n_cpu_moe": 0,
    "n_cpu_ffn": 0,
    "spec_draft_n_max": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The settings of one llama-server run. Sizes are tokens unless a field says otherwise."""

    ctx_size: int = 0
    """Total tokens of all slots (`--ctx-size`); 0 takes the trained context."""
    parallel: int | None = None
    """Slots: people served at once (`--parallel`); None leaves it out (4 slots, one unified cache)."""
    kv_unified: bool | None = None
    """Whether all slots share one cache; None takes the server's own choice."""
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    flash_attn: FlashAttention = "auto"
    batch_size: int = 2048
    """Tokens handed to llama.cpp at once (`--batch-size`)."""
    ubatch_size: int = 512
    """Tokens computed at once (`--ubatch-size`): the width of the compute buffers."""
    swa_full: bool = False
    """Whether sliding-window layers keep the whole context."""
    repack: bool = True
    """Whether the CPU back end keeps a second, rearranged copy of the weights that it can compute faster."""
    load_mode: LoadMode = "auto"
    cache_ram: int = 8192
    """MiB of host RAM that finished conversations may take (`--cache-ram`); -1 without limit, 0 off."""
    ctx_checkpoints: int = 32
    """Snapshots per slot of sliding-window layers (`--ctx-checkpoints`)."""
    embeddings: bool = False
    """Whether it serves embeddings: then every token of a batch is an output."""
    device: str | None = None
    """Devices to offload to (`--device`, comma-separated); `none` for the CPU alone, None for all there are."""
    n_gpu_layers: int | None = None
    """Layers on accelerators, the output layer counted first (`--n-gpu-layers`); None for all."""
    split_mode: SplitMode = "layer"
    main_gpu: int = 0
    """The one device that is used with `split_mode` none."""
    tensor_split: tuple[float, ...] = ()
    """Shares of the devices (`--tensor-split`); empty splits by free memory."""
    override_tensor: tuple[tuple[str, str], ...] = ()
    """Pairs of a pattern searched in tensor names and the buffer type for those it is found in."""
    cpu_moe: bool = False
    """Whether all expert weights stay on the CPU."""
    n_cpu_moe: int = 0
    """Layers, from the first, whose expert weights stay on the CPU."""
    n_cpu_ffn: int = 0
    """Layers, from the first, whose dense feed-forward weights stay on the CPU."""
    kv_offload: bool = True
    """Whether caches lie with their layers; else all on the CPU."""
    fit: bool = True
    """Whether the server may change what is left out so that it fits (`--fit`): layers, and the context of `-c 0`."""
    mmproj: str | None = None
    """The file of a projector for images (`--mmproj`)."""
    mmproj_offload: bool = True
    """Whether the projector lies on the first accelerator; else on the CPU."""
    no_host: bool = False
    """Whether host weights bypass the accelerator's pinned memory, so that they can be rearranged."""
    spec_type: Speculation = "none"
    """Whether the model's own blocks that predict further tokens (MTP) guess ahead (`--spec-type`)."""
    spec_draft_n_max: int = 3
    """Tokens guessed at once (`--spec-draft-n-max`)."""

    def __post_init__(self) -> None:
        for name, lowest in _SMALLEST.items():
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise UsageError(f"{name} is {value}, below the smallest possible {lowest}.")
            if value is not None and value > LARGEST_NUMBER:
                raise UsageError(f"{name} is {value:,}; llama-server counts to {LARGEST_NUMBER:,} and no further.")
        for field, words in (
            ("flash_attn", get_args(FlashAttention)),
            ("load_mode", get_args(LoadMode)),
            ("split_mode", get_args(SplitMode)),
            ("spec_type", get_args(Speculation)),
        ):
            if getattr(self, field) not in words:
                raise UsageError(f"{field} is {getattr(self, field)!r}.", f"llama-server knows {', '.join(words)}.")
        # NaN is in no range.
        if not all(0 <= share <= LARGEST_SHARE for share in self.tensor_split):
            raise UsageError(f"tensor_split is {self.tensor_split}; a share is 0 or more.")
        for cache_type in (self.cache_type_k, self.cache_type_v):
            if cache_type not in CACHE_TYPES:
                raise UsageError(
                    f"{cache_type!r} is not a cache type.", f"llama-server knows {', '.join(CACHE_TYPES)}."
                )

    @classmethod
    def for_users(
        cls, users: int, ctx_per_user: int, *, unified: bool = False, cache_type: CacheType = "f16"
    ) -> Launch:
        """A launch that gives each of `users` people `ctx_per_user` tokens.

        Divided (the default) each has them alone; unified all share `users * ctx_per_user`.
        """
        if users < 1:
            raise UsageError(f"users is {users}; at least one person must be served.")
        if ctx_per_user < 1:
            raise UsageError(f"context is {ctx_per_user}; each person needs at least one token.")
        if users * pad(ctx_per_user, CONTEXT_MULTIPLE) > LARGEST_NUMBER:
            raise UsageError(
                f"{users} x {ctx_per_user:,} tokens are too many: llama-server counts to {LARGEST_NUMBER:,} and no "
                "further."
            )
        return cls(
            ctx_size=users * pad(ctx_per_user, CONTEXT_MULTIPLE),
            parallel=users,
            kv_unified=unified,
            cache_type_k=cache_type,
            cache_type_v=cache_type,
        )

    def with_cache_type(self, cache_type: CacheType) -> Launch:
        """The same launch with this type for keys and values."""
        return replace(self, cache_type_k=cache_type, cache_type_v=cache_type)

    @property
    def slots(self) -> int:
        """Sequences the server keeps (`n_seq_max`)."""
        return AUTO_SLOTS if self.parallel is None else self.parallel

    @property
    def trained_contexts(self) -> int:
        """How many trained contexts a context that was left out is (with `--fit`, one for each cache)."""
        return self.slots if self.fit and not self.unified else 1

    @property
    def tokens_ahead(self) -> int:
        """Tokens guessed at once; 0 where none are."""
        return 0 if self.spec_type == "none" else self.spec_draft_n_max

    @property
    def unified(self) -> bool:
        """Whether one cache serves all slots."""
        return self.parallel is None or bool(self.kv_unified)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedContext:
    """The context as llama.cpp makes it from a launch (`src/llama-context.cpp`, constructor)."""

    n_ctx: int
    """Total tokens of all slots, after rounding."""
    n_ctx_seq: int
    """Tokens one slot can use: the cells of each stream's cache."""
    n_stream: int
    """Separate caches: one per slot, or one when unified."""
    n_seq_max: int
    n_batch: int
    n_ubatch: int
    n_rs_seq: int
    """Earlier states kept beside the present one, of models whose state can be rolled back."""


def resolve_context(launch: Launch, n_ctx_train: int) -> ResolvedContext:
    """What llama-server makes of the launch's context for a model trained on `n_ctx_train` tokens.

    `--ctx-size 0` with an explicit `--parallel` gives every slot the whole trained context while `--fit` is on,
    as it is by default (`common/fit.cpp`); slots with one cache, as with `--parallel` left out, share it.
    """
    slots = launch.slots
    asked = launch.ctx_size or n_ctx_train * launch.trained_contexts
    # Embeddings force n_batch = n_ubatch (`tools/server`); both are limited by the context before rounding.
    batch = launch.ubatch_size if launch.embeddings else launch.batch_size
    n_batch = min(asked, batch)
    n_ctx = pad(asked, CONTEXT_MULTIPLE)
    n_ctx_seq = n_ctx if launch.unified else pad(n_ctx // slots, CONTEXT_MULTIPLE)
    n_stream = 1 if launch.unified else slots
    return ResolvedContext(
        n_ctx=n_ctx_seq * n_stream,
        n_ctx_seq=n_ctx_seq,
        n_stream=n_stream,
        n_seq_max=slots,
        n_batch=n_batch,
        n_ubatch=min(n_batch, launch.ubatch_size),
        n_rs_seq=launch.tokens_ahead,
    )
