"""What public logs printed, as launches of models that are described well enough to predict them.

Each `Run` names the row of `shared/evidence/logs.csv` that it stands for, and says which of our figures the
row's own figures are. `OUT_OF_REACH` says of every other row why no prediction can meet it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.launch import Launch
from planner.model import Model
from planner.model.gguf import GgufHeader, MetadataValue

CARD = 1 << 40
"""Bytes of each simulated card: enough that nothing but the split decides."""


def model_of(name: str, architecture: str, **keys: MetadataValue) -> Model:
    """A model of these hyperparameters without tensors. `__` stands for the dot in a key."""
    metadata: dict[str, MetadataValue] = {"general.architecture": architecture, "general.name": name}
    metadata |= {f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()}
    header = GgufHeader(version=3, metadata=metadata, tensors=(), alignment=32, data_offset=0)
    return Model(path=Path(f"{name}.gguf"), header=header)


def _attention(heads: int, kv: int | tuple[int, ...], head: int, value: int | None = None) -> dict[str, Any]:
    return {
        "attention__head_count": heads,
        "attention__head_count_kv": kv,
        "attention__key_length": head,
        "attention__value_length": head if value is None else value,
    }


def _plain(name: str, architecture: str, layers: int, width: int, vocabulary: int, **keys: Any) -> Model:
    return model_of(
        name,
        architecture,
        block_count=layers,
        embedding_length=width,
        vocab_size=vocabulary,
        **{"context_length": 131_072, "feed_forward_length": 4 * width, **keys},
    )


def _qwen35(name: str, layers: int, width: int, inner: int, ahead: int, *, context: int = 262_144) -> Model:
    """Qwen3.5: gated delta nets, and attention on every fourth layer."""
    heads = {4096: 16, 5120: 24}[width]
    return _plain(
        name,
        "qwen35",
        layers + ahead,
        width,
        248_320,
        context_length=context,
        nextn_predict_layers=ahead,
        full_attention_interval=4,
        ssm__conv_kernel=4,
        ssm__inner_size=inner,
        ssm__state_size=128,
        ssm__group_count=16,
        **_attention(heads, 4, 256),
    )


def _gemma4(name: str, layers: int, width: int, period: int, **keys: Any) -> Model:
    return _plain(
        name,
        "gemma4",
        layers,
        width,
        262_144,
        attention__sliding_window_pattern=tuple((layer + 1) % period != 0 for layer in range(layers)),
        attention__key_length=512,
        attention__value_length=512,
        attention__key_length_swa=256,
        attention__value_length_swa=256,
        attention__head_count=8,
        **keys,
    )


_MLA: dict[str, Any] = {
    **_attention(128, 1, 576, 512),
    "attention__key_length_mla": 192,
    "attention__value_length_mla": 128,
}

MODELS: Mapping[str, Model] = {
    model.name: model
    for model in (
        _plain("llama-3.1-8b", "llama", 32, 4096, 128_256, **_attention(32, 8, 128)),
        _plain("llama-3.2-3b", "llama", 28, 3072, 128_256, **_attention(24, 8, 128)),
        _plain("tinyllama-1.1b", "llama", 22, 2048, 32_000, context_length=2048, **_attention(32, 4, 64)),
        _plain("qwen2.5-7b", "qwen2", 28, 3584, 152_064, **_attention(28, 4, 128)),
        _plain("qwen2.5-14b", "qwen2", 48, 5120, 152_064, **_attention(40, 8, 128)),
        _plain("qwen3-0.6b", "qwen3", 28, 1024, 151_936, context_length=40_960, **_attention(16, 8, 128)),
        _plain("qwen3-1.7b", "qwen3", 28, 2048, 151_936, context_length=40_960, **_attention(16, 8, 128)),
        _plain("qwen3-4b", "qwen3", 36, 2560, 151_936, **_attention(32, 8, 128)),
        _plain("qwen3-32b", "qwen3", 64, 5120, 151_936, **_attention(64, 8, 128)),
        _plain("qwen3-30b-a3b", "qwen3moe", 48, 2048, 151_936, **_attention(32, 4, 128)),
        _plain("qwen3-235b-a22b", "qwen3moe", 94, 4096, 151_936, **_attention(64, 4, 128)),
        _plain("glm-z1-32b", "glm4", 61, 6144, 151_552, **_attention(48, 2, 128)),
        _qwen35("qwen3.5-9b", 32, 4096, 4096, 0),
        _qwen35("qwen3.5-27b", 64, 5120, 6144, 0),
        _qwen35("qwen3.8-27b-mtp", 64, 5120, 6144, 1),
        _plain(
            "qwen3.6-35b-a3b",
            "qwen35moe",
            40,
            2048,
            248_320,
            context_length=262_144,
            ssm__conv_kernel=4,
            ssm__inner_size=4096,
            ssm__state_size=128,
            ssm__group_count=16,
            **_attention(16, 2, 256),
        ),
        _plain(
            "qwen3-coder-next",
            "qwen3next",
            48,
            2048,
            151_936,
            context_length=262_144,
            ssm__conv_kernel=4,
            ssm__inner_size=4096,
            ssm__state_size=128,
            ssm__group_count=16,
            **_attention(16, 2, 256),
        ),
        _plain(
            "lfm2.5-1.5b",
            "lfm2",
            16,
            2048,
            65_536,
            context_length=128_000,
            shortconv__l_cache=3,
            attention__head_count=32,
            attention__head_count_kv=(0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0),
        ),
        _plain("gemma-2-2b", "gemma2", 26, 2304, 256_000, attention__sliding_window=4096, **_attention(8, 4, 256)),
        _plain("gemma-3-27b", "gemma3", 62, 5376, 262_208, attention__sliding_window=1024, **_attention(32, 16, 128)),
        _gemma4(
            "gemma-4-e2b",
            35,
            1536,
            5,
            attention__sliding_window=512,
            attention__head_count_kv=1,
            attention__shared_kv_layers=20,
        ),
        _gemma4(
            "gemma-4-12b",
            48,
            3840,
            6,
            attention__sliding_window=1024,
            attention__head_count_kv=tuple(8 if (layer + 1) % 6 else 1 for layer in range(48)),
        ),
        _gemma4(
            "gemma-4-31b",
            60,
            5376,
            6,
            attention__sliding_window=1024,
            attention__head_count_kv=tuple(16 if (layer + 1) % 6 else 4 for layer in range(60)),
        ),
        _plain("gpt-oss-20b", "gpt-oss", 24, 2880, 201_088, attention__sliding_window=128, **_attention(64, 8, 64)),
        _plain("gpt-oss-120b", "gpt-oss", 36, 2880, 201_088, attention__sliding_window=128, **_attention(64, 8, 64)),
        _plain(
            "laguna",
            "laguna",
            48,
            2048,
            131_072,
            context_length=1 << 20,
            attention__sliding_window=512,
            **_attention(32, 8, 128),
        ),
        _plain("deepseek-v3", "deepseek2", 61, 7168, 129_280, context_length=163_840, **_MLA),
        _plain("deepseek-v2.5", "deepseek2", 60, 5120, 102_400, context_length=163_840, **_MLA),
        _plain("deepseek-v2-expanded", "deepseek2", 60, 5120, 102_400, **_attention(128, 128, 192, 128)),
        _plain("deepseek-r1-expanded", "deepseek2", 61, 7168, 129_280, **_attention(128, 128, 192, 128)),
        _plain("kimi-k2-expanded", "deepseek2", 61, 7168, 163_840, **_attention(64, 64, 192, 128)),
        _plain(
            "deepseek-v2-lite",
            "deepseek2",
            27,
            2048,
            102_400,
            context_length=163_840,
            **_attention(16, 16, 192, 128),
        ),
        _plain(
            "deepseek-v4",
            "deepseek4",
            43,
            4096,
            129_280,
            context_length=1 << 20,
            attention__sliding_window=128,
            attention__indexer__key_length=128,
            attention__compress_ratios=(0, 0, *(4, 128) * 20, 4),
            **_attention(64, 1, 512),
        ),
        _plain(
            "ling-3",
            "bailingmoe3",
            43,
            2560,
            157_184,
            nextn_predict_layers=1,
            ssm__conv_kernel=4,
            kda__head_dim=128,
            attention__key_length_mla=192,
            attention__value_length_mla=128,
            **_attention(32, (0, 0, 0, 0, 0, 1) * 7 + (1,), 576, 512),
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One launch behind a row of the logs."""

    row: str
    model: str
    launch: Launch
    figures: Mapping[str, str]
    """The row's name of a figure, and ours (`benchmarks.accuracy_sources.figures_of`)."""
    cards: int = 0


def _run(row: str, model: str, figures: str, *, cards: int = 0, **settings: Any) -> Run:
    """Figures are spelt `theirs:ours`. Both cache types at once are `both`."""
    both = settings.pop("both", None)
    if both:
        settings |= {"cache_type_k": both, "cache_type_v": both}
    pairs = dict(pair.split(":") for pair in figures.split())
    return Run(row=row, model=model, launch=Launch(**settings), figures=pairs, cards=cards)


_GEMMA4: dict[str, Any] = {"model": "gemma-4-12b", "ctx_size": 8192, "parallel": 1}

RUNS: tuple[Run, ...] = (
    _run("GT01", "qwen3.5-27b", "kv:kv rs:state", ctx_size=131_072, parallel=1),
    _run("GT01", "qwen3.5-27b", "kv_gpu7:kv@CUDA0", ctx_size=131_072, parallel=1, n_gpu_layers=26, cards=1),
    _run(
        "GT02",
        "qwen3.8-27b-mtp",
        "kv:kv rs:state mtp_kv:ahead out:output",
        ctx_size=8192,
        ubatch_size=2048,
        spec_type="draft-mtp",
        spec_draft_n_max=2,
    ),
    _run("GT03", "gemma-4-e2b", "kv_full:full kv_swa:swa out:output", ctx_size=4096, parallel=1, swa_full=True),
    _run("GT05", "gemma-4-12b", "kv_full:full kv_swa:swa out:output", ctx_size=8192, ubatch_size=2048),
    _run("GT06", "gemma-4-12b", "kv_full:full kv_swa:swa", ctx_size=8192, both="q8_0"),
    _run("GT06", **_GEMMA4, figures="np1_total_q8:kv", both="q8_0"),
    _run("GT06", **_GEMMA4, figures="np1_q4:kv", both="q4_0"),
    _run("GT06", **_GEMMA4, figures="np1_f16:kv"),
    _run("GT06", **{**_GEMMA4, "ctx_size": 16_384}, figures="np1_16k_q8:kv", both="q8_0"),
    _run("GT06", **{**_GEMMA4, "ctx_size": 4096}, figures="np1_4k_q8:kv", both="q8_0"),
    _run("GT07", "qwen2.5-7b", "q8:kv", ctx_size=8192, both="q8_0"),
    _run("GT07", "qwen2.5-7b", "q4:kv", ctx_size=8192, both="q4_0"),
    _run("GT09", "qwen3.8-27b-mtp", "kv:kv rs:state", ctx_size=131_072, both="q8_0"),
    _run("GT10", "gpt-oss-20b", "full:full swa:swa out:output", ctx_size=131_072, parallel=1),
    _run("GT11", "gpt-oss-20b", "swa:swa", ctx_size=131_072, parallel=1, ubatch_size=2048),
    _run("GT14", "gpt-oss-20b", "full:full swa:swa", ctx_size=8192, parallel=1, ubatch_size=128, both="q8_0"),
    _run("GT15", "gemma-2-2b", "full:full out:output", ctx_size=8192),
    _run("GT16", "gemma-2-2b", "full:full", ctx_size=16_384, parallel=2, flash_attn="off", swa_full=True),
    _run("GT18", "qwen3-4b", "kv:kv out:output", ctx_size=8192),
    _run("GT19", "llama-3.2-3b", "kv:kv", ctx_size=2048),
    _run("GT20", "qwen3-1.7b", "kv:kv", ctx_size=16_384),
    _run("GT22", "qwen3.5-9b", "f16:kv", ctx_size=131_072, parallel=1),
    _run("GT22", "qwen3.5-9b", "q4:kv", ctx_size=131_072, parallel=1, both="q4_0"),
    _run("GT23", "qwen3-4b", "kv:kv", ctx_size=2048),
    _run("GT24", "lfm2.5-1.5b", "kv:kv", ctx_size=128_000),
    _run("GT25", "qwen3.5-27b", "K:keys rs:state out:output", ctx_size=65_536, parallel=1, cache_type_k="q8_0"),
    _run("GT27", "laguna", "full:full swa:swa", ctx_size=1 << 20, parallel=1, both="q4_0"),
    _run("GT30", "deepseek-v2-expanded", "K:keys V:values", ctx_size=4096, parallel=1, flash_attn="off"),
    _run(
        "GT30",
        "deepseek-v2-expanded",
        "Kq8:keys",
        ctx_size=4096,
        parallel=1,
        flash_attn="off",
        cache_type_k="q8_0",
    ),
    _run("GT34", "qwen3-30b-a3b", "ctx:kv", ctx_size=4096),
    _run("GT35", "qwen3-1.7b", "ctx:kv"),
    _run("GT36", "qwen3-coder-next", "c4k:context", ctx_size=4096),
    _run("GT36", "qwen3-coder-next", "c100k:context", ctx_size=100_096),
    _run("GT38", "qwen3.5-27b", "kv:kv rs:state", ctx_size=262_144),
    _run("GT42", "qwen3.5-27b", "rs:state", ctx_size=8192, parallel=2),
    _run("GT43", "qwen3.8-27b-mtp", "kv:kv rs:state", ctx_size=32_768, parallel=1),
    _run("GT45", "ling-3", "kv:kv", ctx_size=65_536, both="q8_0"),
    _run("GT47", "llama-3.2-3b", "kv:kv gpu0:kv@CUDA0", ctx_size=32_768, cards=2),
    _run("GT48", "qwen2.5-14b", "kv:kv", ctx_size=4096),
    _run("GT50", "tinyllama-1.1b", "kv:kv", ctx_size=32_768, parallel=99),
    _run("GT51", "qwen3-4b", "K:keys V:values", ctx_size=32_768, cache_type_k="q8_0", cache_type_v="q4_0"),
    _run("GT60", "llama-3.1-8b", "kv:kv", ctx_size=16_384, parallel=1, ubatch_size=1024),
    _run("GT61", "llama-3.1-8b", "kv:kv", ctx_size=1024, parallel=1, flash_attn="off", cache_type_k="iq4_nl"),
    _run("GT63", "qwen3-32b", "kv:kv", ctx_size=16_896, parallel=1, both="q8_0"),
    _run("GT64", "qwen3-32b", "kv:kv", ctx_size=40_960, parallel=1, flash_attn="off"),
    _run("GT65", "qwen3-30b-a3b", "kv:kv", ctx_size=4096, parallel=1, flash_attn="off"),
    _run("GT67", "qwen3-30b-a3b", "kv:kv", ctx_size=32_768, parallel=1),
    _run("GT68", "qwen3-30b-a3b", "kv:kv gpu0:kv@CUDA0", ctx_size=32_768, parallel=1, cards=2),
    _run("GT69", "qwen3-235b-a22b", "kv:kv", ctx_size=32_768, parallel=1),
    _run("GT71", "qwen3-235b-a22b", "kv:kv", ctx_size=8192, parallel=1, cache_type_k="q8_0"),
    _run("GT72", "qwen3-235b-a22b", "kv:kv", ctx_size=65_536, parallel=1, both="q8_0"),
    # The fork of these rows had no sliding windows: as with --swa-full.
    _run("GT73", "gemma-3-27b", "kv:kv", ctx_size=131_072, parallel=1, swa_full=True),
    _run("GT75", "glm-z1-32b", "kv:kv", ctx_size=32_768, parallel=1),
    _run("GT76", "glm-z1-32b", "kv:kv", ctx_size=5120, parallel=1, both="q8_0"),
    _run("GT77", "deepseek-v3", "kv:kv", ctx_size=32_768, parallel=1),
    _run("GT79", "deepseek-v3", "kv:kv", ctx_size=131_072, parallel=1, both="q8_0"),
    _run("GT80", "deepseek-r1-expanded", "kv:kv", ctx_size=2048, parallel=1, flash_attn="off"),
    _run("GT81", "deepseek-v2.5", "kv:kv", ctx_size=32_768, parallel=1),
    _run("GT83", "kimi-k2-expanded", "kv:kv", ctx_size=512, parallel=1, flash_attn="off"),
    _run("GT84", "deepseek-v2-lite", "kv:kv", ctx_size=512, parallel=1, flash_attn="off"),
)

OUT_OF_REACH: Mapping[str, str] = {
    "GT29": "its build rounded 70,000 tokens up to 70,016; llama.cpp rounds to multiples of 256 since 2025-11",
    "GT39": "its build took 40,128 tokens as they were; llama.cpp rounds to multiples of 256 since 2025-11",
}
"""Rows whose figures were true of a build that decided otherwise."""
