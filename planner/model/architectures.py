"""What llama.cpp does with each architecture, as one table.

An architecture that is not here is planned as `unknown`: its weights are exact, the rest is a guess.

To add next month's architecture: write its entry in `ARCHITECTURES` with the rule that llama.cpp applies
(`load_arch_hparams` of its file in `src/models/`, and `create_memory` in `src/llama-model.cpp`), most often one
of the rules that are there already; add its name to `tests/data/architectures.txt`; and give
`tests/data/architectures.jsonl` one line with what llama.cpp reserved for it (`-lv 4`, or a dry run).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.errors import ModelError
from planner.model.further_caches import (
    FurtherCaches,
    compressed_caches,
    hybrid_indexer,
    kv_indexer,
    sparse_indexer,
)
from planner.model.hyperparameters import MAX_LAYERS, Hyperparameters, Keys, layer_counts, read_hyperparameters
from planner.model.layout import CacheLayout, MemoryLayout, Span, StateLayout
from planner.model.recurrence import (
    LayerRule,
    StateRule,
    all_but_every,
    every_block,
    every_layer,
    kda_state,
    linear_attention_state,
    mamba2_state,
    mamba_state,
    rwkv_state,
    short_convolution_state,
    without_heads_and_feed_forward,
    without_kv_heads,
)
from planner.model.windows import SwaPattern, WindowRule, draft_window, no_window


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The rules of one architecture. The defaults are those of a plain transformer (llama)."""

    keeps_context: bool = True
    """Whether it has a memory at all; encoders and diffusion models have none."""
    swa: WindowRule | None = None
    """Which layers see only a window; None where every layer sees the whole context."""
    mla: bool = False
    """Whether it reads the keys that switch latent attention on."""
    attention: LayerRule | None = None
    """The layers that own a KV cache; None for all of the trunk that keep no state."""
    recurrent: LayerRule | None = None
    """The layers that keep a state of fixed size; None for none."""
    state: StateRule | None = None
    """How large that state is."""
    rollback: bool = False
    """Whether earlier states are kept while tokens are guessed ahead (`llm_arch_supports_rs_rollback`)."""
    further: FurtherCaches | None = None
    """Caches beside the usual ones, and states beside the usual one."""
    loops: str = ""
    """The key that says how often the layers are run through, each time with a cache of its own."""
    flash_attention: bool = True
    heads_everywhere: bool = False
    """Whether the sizes of heads are read even if the first layer has none."""
    router: bool = False
    """Whether llama.cpp appends a layer of one head to those of the file, which picks an adapter per token."""

    def read(self, keys: Keys) -> Hyperparameters:
        """The hyperparameters of a file. Raises ModelError where llama.cpp would refuse them."""
        window = self.swa(keys) if self.swa else no_window(keys)
        shape = read_hyperparameters(keys, window=window, mla=self.mla, heads_everywhere=self.heads_everywhere)
        return _with_router(shape) if self.router else shape

    def layout(self, keys: Keys, shape: Hyperparameters) -> MemoryLayout:
        """What a model of this architecture keeps for its context."""
        if not self.keeps_context:
            return MemoryLayout()
        recurrent = self.recurrent(keys, shape) if self.recurrent else ()
        states: tuple[StateLayout, ...] = ()
        if recurrent and self.state:
            elements = self.state(keys, shape) * len(recurrent)
            states = (StateLayout(name="RS", layers=recurrent, elements=elements),)
        layout = MemoryLayout(
            caches=_usual_caches(shape, self._attention_layers(keys, shape, recurrent), self._times(keys)),
            states=states,
            n_swa=shape.n_swa,
            one_cache_type=shape.is_mla,
            flash_attention=self.flash_attention,
            widest_v=max(shape.n_embd_v_gqa(layer) for layer in range(shape.n_layer_all)),
            ahead=() if self.router else _usual_caches(shape, tuple(range(shape.n_layer, shape.n_layer_all)), 1),
        )
        if self.further:
            layout = self.further(keys, shape, layout)
        return replace(layout, states=tuple(replace(state, rolls_back=self.rollback) for state in layout.states))

    def _times(self, keys: Keys) -> int:
        times = keys.integer(self.loops, 1) if self.loops else 1
        if times * layer_counts(keys)[1] > MAX_LAYERS:
            raise ModelError(
                f"{keys.architecture}.{self.loops} is {times}: llama.cpp runs at most {MAX_LAYERS} layers."
            )
        return times

    def _attention_layers(self, keys: Keys, shape: Hyperparameters, recurrent: tuple[int, ...]) -> tuple[int, ...]:
        if self.attention:
            return self.attention(keys, shape)
        return tuple(layer for layer in range(shape.n_layer) if layer not in recurrent)


def _with_router(shape: Hyperparameters) -> Hyperparameters:
    """Granite Switch: the layer behind the last one (`hparams.router_layer`)."""
    return replace(
        shape,
        n_layer_all=shape.n_layer_all + 1,
        n_head=(*shape.n_head, 1),
        n_head_kv=(*shape.n_head_kv, 1),
        n_ff=(*shape.n_ff, 0),
        swa_layers=(*shape.swa_layers, False),
    )


def _usual_caches(shape: Hyperparameters, layers: tuple[int, ...], times: int) -> tuple[CacheLayout, ...]:
    """One cache, or one with and one without a window (`llama_kv_cache_iswa`)."""
    if not layers:
        return ()
    if not any(shape.swa_layers):
        return (_cache("KV", Span.CONTEXT, shape, layers * times),)
    dense = tuple(layer for layer in layers if not shape.swa_layers[layer])
    windowed = tuple(layer for layer in layers if shape.swa_layers[layer])
    return (
        _cache("non-SWA KV", Span.CONTEXT, shape, dense * times),
        _cache("SWA KV", Span.WINDOW, shape, windowed * times),
    )


def _cache(name: str, span: Span, shape: Hyperparameters, layers: tuple[int, ...]) -> CacheLayout:
    return CacheLayout(
        name=name,
        span=span,
        layers=layers,
        k_elements=tuple(shape.n_embd_k_gqa(layer) for layer in layers),
        v_elements=() if shape.is_mla else tuple(shape.n_embd_v_gqa(layer) for layer in layers),
    )


def _first_layers(count: int) -> LayerRule:
    def rule(_keys: Keys, shape: Hyperparameters) -> tuple[int, ...]:
        return tuple(range(min(count, shape.n_layer)))

    return rule


def _all_but_shared(keys: Keys, shape: Hyperparameters) -> tuple[int, ...]:
    """Gemma 4: the last layers reuse the caches of earlier ones."""
    return tuple(range(shape.n_layer_all - keys.integer("attention.shared_kv_layers", 0)))


def _heads_without_feed_forward(_keys: Keys, shape: Hyperparameters) -> tuple[int, ...]:
    """Nemotron-H: the layers and blocks that have KV heads and no feed-forward."""
    return tuple(layer for layer in range(shape.n_layer_all) if shape.n_head_kv[layer] and not shape.n_ff[layer])


def _with_blocks(recurrent: LayerRule) -> LayerRule:
    """All without a state: the blocks that predict further tokens, too, as llama.cpp takes most hybrids."""

    def rule(keys: Keys, shape: Hyperparameters) -> tuple[int, ...]:
        stateful = set(recurrent(keys, shape))
        return tuple(layer for layer in range(shape.n_layer_all) if layer not in stateful)

    return rule


_PLAIN = Architecture()
_NO_CONTEXT = Architecture(keeps_context=False)
_MLA = Architecture(mla=True)
_RWKV = Architecture(recurrent=every_layer, state=rwkv_state)
_KDA = Architecture(mla=True, attention=_with_blocks(without_kv_heads), recurrent=without_kv_heads, state=kda_state)
_LFM2 = Architecture(
    attention=_with_blocks(without_kv_heads),
    recurrent=without_kv_heads,
    state=short_convolution_state,
    rollback=True,
)
_DELTA_NET = Architecture(recurrent=all_but_every(4), state=mamba2_state)
_NEMOTRON_H = Architecture(
    attention=_heads_without_feed_forward,
    recurrent=without_heads_and_feed_forward,
    state=mamba2_state,
    rollback=True,
)


def _mamba_hybrid(state: StateRule) -> Architecture:
    return Architecture(attention=_with_blocks(without_kv_heads), recurrent=without_kv_heads, state=state)


def _swa(pattern: SwaPattern) -> Architecture:
    return Architecture(swa=pattern)


_ARRAY = SwaPattern()
_LAST_OF_4 = SwaPattern(period=4)
_FIRST_OF_4 = SwaPattern(period=4, dense_first=True)

ARCHITECTURES: Mapping[str, Architecture] = {
    **dict.fromkeys(
        """
        apertus arcee arctic baichuan bailingmoe bailingmoe2 bitnet bloom chameleon chatglm codeshell cogvlm
        command-r dbrx deci deepseek deepseek2-ocr dots1 ernie4_5 ernie4_5-moe exaone falcon gemma glm4 glm4moe
        gpt2 gptneox granite granitemoe grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2
        jais jais2 llama llama-embed maincoder minicpm minicpm3 minimax-m2 mistral3 mpt nemotron olmo olmoe
        openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plm pockettts qwen qwen2 qwen2moe qwen2vl
        qwen3 qwen3moe qwen3tts qwen3vl qwen3vlmoe refact seed_oss smollm3 stablelm starcoder starcoder2 t5
        t5encoder talkie xverse
        """.split(),
        _PLAIN,
    ),
    **dict.fromkeys(
        """
        bert clef dream eurobert gemma-embedding jina-bert-v2 jina-bert-v3 llada llada-moe modern-bert neo-bert
        nomic-bert nomic-bert-moe rnd1 wavtokenizer-dec
        """.split(),
        _NO_CONTEXT,
    ),
    "grok": Architecture(flash_attention=False),
    "nanbeige": Architecture(loops="num_loops"),
    "graniteswitch": Architecture(attention=every_block, router=True),
    "clip": _NO_CONTEXT,
    "gptj": _NO_CONTEXT,
    # Drafts for another model.
    "eagle3": _PLAIN,
    "dflash": Architecture(swa=draft_window),
    "gemma4-assistant": _NO_CONTEXT,
    # Sliding windows.
    "afmoe": _swa(_LAST_OF_4),
    "cohere2": _swa(replace(_LAST_OF_4, required=True)),
    "cohere2moe": _swa(replace(_FIRST_OF_4, required=True)),
    "exaone-moe": _swa(replace(_LAST_OF_4, required=True)),
    "exaone4": _swa(SwaPattern(period=4, default_window=4096, only_with_layers=64)),
    "gemma2": _swa(SwaPattern(period=2, default_window=4096)),
    "gemma3": _swa(SwaPattern(period=6)),
    "gemma3n": Architecture(swa=SwaPattern(period=5, required=True), attention=_first_layers(20)),
    "gemma4": Architecture(swa=_ARRAY, attention=_all_but_shared),
    "gpt-oss": _swa(SwaPattern(period=2, required=True)),
    "granite_swa": _swa(_ARRAY),
    "laguna": _swa(_FIRST_OF_4),
    "llama4": _swa(SwaPattern(period=4, forced_window=8192)),
    "maple": _swa(SwaPattern(required=True)),
    "mellum": _swa(_LAST_OF_4),
    "mimo2": _swa(_ARRAY),
    "muse-glimmer": _swa(replace(_LAST_OF_4, required=True)),
    "olmo2": _swa(_LAST_OF_4),
    "plamo3": _swa(SwaPattern(period=8)),
    "smallthinker": _swa(SwaPattern(period=4, dense_first=True, forced_window=4096)),
    "spark2_5": _swa(_ARRAY),
    "step35": _swa(_ARRAY),
    # Latent attention, sparse attention, further caches.
    "deepseek2": _MLA,
    "mistral4": _MLA,
    "deepseek32": Architecture(mla=True, further=sparse_indexer("all")),
    "glm-dsa": Architecture(mla=True, further=sparse_indexer("types or period")),
    "hy_v4": Architecture(mla=True, further=sparse_indexer("types")),
    "dots3note": Architecture(mla=True, swa=_ARRAY, further=sparse_indexer("types")),
    "minimax-m3": Architecture(attention=every_block, further=kv_indexer),
    "deepseek4": Architecture(
        swa=SwaPattern(period=0, required=True, ahead=True), further=compressed_caches, rollback=True
    ),
    # Recurrent and hybrid.
    "rwkv6": _RWKV,
    "rwkv6qwen2": _RWKV,
    "rwkv7": _RWKV,
    "arwkv7": _RWKV,
    "mamba": Architecture(recurrent=every_layer, state=mamba_state),
    "mamba2": Architecture(recurrent=every_layer, state=mamba2_state),
    "jamba": _mamba_hybrid(mamba_state),
    "falcon-h1": Architecture(attention=every_block, recurrent=every_layer, state=mamba2_state),
    "granitehybrid": _mamba_hybrid(mamba2_state),
    "plamo2": replace(_mamba_hybrid(mamba2_state), heads_everywhere=True),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H,
    "lfm2": replace(_LFM2, swa=SwaPattern(period=0)),
    "lfm2moe": _LFM2,
    "qwen3next": _DELTA_NET,
    "qwen35": replace(_DELTA_NET, rollback=True),
    "qwen35moe": replace(_DELTA_NET, rollback=True),
    "minimax-01": Architecture(recurrent=all_but_every(8), state=linear_attention_state),
    "kimi-linear": _KDA,
    "kimi-k3": replace(_KDA, rollback=True),
    "bailingmoe3": replace(_KDA, rollback=True),
    "qwen4exp": replace(_DELTA_NET, further=hybrid_indexer, rollback=True),
    "glm5-next": Architecture(
        mla=True, recurrent=without_kv_heads, state=kda_state, further=hybrid_indexer, rollback=True
    ),
}
"""By `general.architecture`."""

UNSUPPORTED: Mapping[str, str] = {
    "clip": "it is a projector for images, which goes with a model (--mmproj)",
    "gptj": "llama.cpp knows its name and has no implementation",
    "gemma4-assistant": "it drafts for a Gemma 4 model, whose cache it shares, and cannot run alone",
    "eagle3": "it drafts for another model and cannot run alone",
    "dflash": "it drafts for another model and cannot run alone",
}
"""Architectures whose files llama-server refuses as a model, and why."""

DIFFUSION = ("dream", "llada", "llada-moe", "rnd1")
"""Architectures that make text by diffusion: llama-server loads them, and answers no request."""
