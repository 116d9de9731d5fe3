"""The options that make a `Launch`, in people's words and in llama-server's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from planner.errors import UsageError
from planner.launch import CACHE_TYPES, CacheType, Launch

PROGRAM = "llama-server"
_IGNORED_KEY = "planner.ignored"
_NOT_COUNTED_KEY = "planner.not_counted"

_NO_MEMORY_VALUES = """
    --host --port -t,--threads -tb,--threads-batch --threads-http -a,--alias --api-key --api-key-file
    --chat-template --chat-template-file --temp,--temperature --top-k --top-p --min-p --repeat-penalty
    -s,--seed -n,--predict,--n-predict --prio --slot-save-path -to,--timeout --log-file --path
    --reasoning-format --reasoning-budget -lv,--verbosity,--log-verbosity -fitt,--fit-target
    -fitc,--fit-ctx --cache-reuse --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --numa
    --chat-template-kwargs --presence-penalty --frequency-penalty --samplers --override-kv --poll --poll-batch
    -C,--cpu-mask -Cr,--cpu-range --cpu-strict --keep -sps,--slot-prompt-similarity --ssl-key-file --ssl-cert-file
    --yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast --log-colors --tags
    --repeat-last-n --typical,--typical-p --mirostat --mirostat-lr --mirostat-ent --grammar --grammar-file
    -j,--json-schema -l,--logit-bias --api-prefix --cors-origins
"""
_NO_MEMORY_FLAGS = """
    --jinja --no-jinja --metrics --webui --no-webui --slots --no-slots --props -cb,--cont-batching
    -nocb,--no-cont-batching --warmup --no-warmup -v,--verbose --offline --log-jsonl --perf --no-perf
    --context-shift --no-context-shift --ui --no-ui --no-mmproj --no-cache-prompt --cache-prompt --log-disable
    --ignore-eos --reuse-port --log-prefix --log-timestamps -sp,--special --check-tensors
"""
"""Options of llama-server that a pasted command may hold and that decide no memory."""
_NOT_COUNTED_VALUES = """
    -md,--model-draft,--spec-draft-model -ctkd,--cache-type-k-draft -ctvd,--cache-type-v-draft -ngld,--gpu-layers-draft
    -devd,--device-draft --lora --lora-scaled --control-vector --control-vector-scaled --rpc --moe-cache-mib
    -lzm,--lazy-mode --kv-unified-per-slot --pooling -cms,--checkpoint-min-step -hf,--hf-repo -hff,--hf-file
    -mmdev,--mmproj-device --image-min-tokens --image-max-tokens --mtmd-batch-max-tokens
"""
_NOT_COUNTED_FLAGS = """
    --rerank,--reranking --op-offload --no-op-offload -bs,--backend-sampling --cache-idle-slots --no-cache-idle-slots
"""
"""Options that may decide memory and that no plan counts yet: they are named behind the plan."""

_Command = TypeVar("_Command", bound=Callable[..., Any])

_PEOPLE = ("context", "users")
_SLOTS = ("ctx_size", "parallel", "kv_unified")

_OPTIONS = (
    click.option("--context", type=click.IntRange(1), metavar="N", help="People's words: tokens for each person."),
    click.option("--users", type=click.IntRange(1), metavar="M", help="People's words: people at once."),
    click.option("-c", "--ctx-size", type=click.IntRange(0), metavar="N", help="Tokens of all slots together."),
    click.option("-np", "--parallel", type=int, metavar="N", help="Slots; left out or -1: four that share."),
    click.option("-kvu/-no-kvu", "--kv-unified/--no-kv-unified", default=None, help="One cache for all slots."),
    click.option("--cache-type", type=click.Choice(CACHE_TYPES), help="Both cache types at once."),
    click.option("-ctk", "--cache-type-k", type=click.Choice(CACHE_TYPES)),
    click.option("-ctv", "--cache-type-v", type=click.Choice(CACHE_TYPES)),
    click.option("-fa", "--flash-attn", metavar="[on|off|auto]"),
    click.option("-b", "--batch-size", type=click.IntRange(1), metavar="N"),
    click.option("-ub", "--ubatch-size", type=click.IntRange(1), metavar="N"),
    click.option("--swa-full", is_flag=True, default=None, help="Windowed layers keep the whole context."),
    click.option("--repack/--no-repack", " /-nr", default=None, help="Rearrange weights for the processor."),
    click.option("-lm", "--load-mode", type=click.Choice(["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"])),
    click.option("--mmap/--no-mmap", default=None, hidden=True),
    click.option("--mlock", is_flag=True, default=None, hidden=True),
    click.option("-cram", "--cache-ram", type=click.IntRange(-1), metavar="MIB"),
    click.option("-ctxcp", "--ctx-checkpoints", type=click.IntRange(0), metavar="N"),
    click.option("--embedding", "--embeddings", "embeddings", is_flag=True, default=None, help="Serve embeddings."),
    click.option("-dev", "--device", metavar="NAMES", help="Accelerators to use; none for the processor alone."),
    click.option("-ngl", "--gpu-layers", "--n-gpu-layers", "n_gpu_layers", metavar="N", help="Layers on accelerators."),
    click.option("-sm", "--split-mode", type=click.Choice(["none", "layer"])),
    click.option("-mg", "--main-gpu", type=click.IntRange(0), metavar="INDEX"),
    click.option("-ts", "--tensor-split", metavar="N0,N1,...", help="Shares of the accelerators."),
    click.option("-ot", "--override-tensor", multiple=True, metavar="PATTERN=BUFFER,..."),
    click.option("-cmoe", "--cpu-moe", is_flag=True, default=None, help="All expert weights on the processor."),
    click.option("-ncmoe", "--n-cpu-moe", type=click.IntRange(0), metavar="N"),
    click.option("-ncffn", "--n-cpu-ffn", type=click.IntRange(0), metavar="N"),
    click.option("-kvo/-nkvo", "--kv-offload/--no-kv-offload", default=None, help="Caches lie with their layers."),
    click.option("--spec-type", type=click.Choice(["none", "draft-mtp"]), help="Guess ahead with the model itself."),
    click.option("--spec-draft-n-max", type=click.IntRange(1), metavar="N", help="Tokens guessed ahead."),
    click.option("-fit", "--fit", type=click.Choice(["on", "off"]), help="May what is left out be changed to fit."),
    click.option("-mm", "--mmproj", metavar="FILE", help="A projector for images."),
    click.option("--mmproj-offload/--no-mmproj-offload", default=None, help="The projector lies on an accelerator."),
    click.option("--no-host", is_flag=True, default=None, help="Host weights bypass pinned memory."),
)


def launch_options(command: _Command) -> _Command:
    """Give a command every option that makes a launch, and those that a pasted command may hold beside them."""
    for option in reversed((*_OPTIONS, *_no_memory_options())):
        command = option(command)
    return command


def _no_memory_options() -> Iterator[Callable[[_Command], _Command]]:
    lists = (
        (_NO_MEMORY_VALUES, False, _IGNORED_KEY),
        (_NO_MEMORY_FLAGS, True, _IGNORED_KEY),
        (_NOT_COUNTED_VALUES, False, _NOT_COUNTED_KEY),
        (_NOT_COUNTED_FLAGS, True, _NOT_COUNTED_KEY),
    )
    for names, is_flag, key in lists:
        for group in names.split():
            yield click.option(
                *group.split(","),
                f"no_memory_{group.strip('-').split(',')[0].replace('-', '_')}_{is_flag}",
                is_flag=is_flag,
                default=None,
                hidden=True,
                expose_value=False,
                callback=partial(_note, key),
            )


def _note(key: str, context: click.Context, option: click.Parameter, value: object) -> None:
    if value is not None:
        context.meta.setdefault(key, []).append(option.opts[-1])


def ignored_options() -> list[str]:
    """The options of this call that decide no memory."""
    ignored: list[str] = click.get_current_context().meta.get(_IGNORED_KEY, [])
    return ignored


def uncounted_options() -> list[str]:
    """The options of this call that may decide memory and are not counted."""
    uncounted: list[str] = click.get_current_context().meta.get(_NOT_COUNTED_KEY, [])
    return uncounted


def is_pasted(words: tuple[str, ...]) -> bool:
    """Whether the words hold the name of the program, as a pasted command does."""
    return any(Path(word).name.removesuffix(".exe") == PROGRAM for word in words)


def chosen_model(words: tuple[str, ...], named: Path | None) -> Path:
    """The model of a call: the one word, or `--model` in a pasted command, whose program name is left out."""
    if "" in words:
        raise click.UsageError("MODEL is empty: name a file.")
    words = tuple(word for word in words if Path(word).name.removesuffix(".exe") != PROGRAM)
    if named is not None and not words:
        return named
    if named is None and len(words) == 1:
        return Path(words[0])
    if not words:
        raise click.UsageError("Missing argument 'MODEL'.")
    both = (*words, *([str(named)] if named else []))
    raise click.UsageError(f"One model at a time, not {' and '.join(both)}.")


def launch_from(options: dict[str, Any], *, pasted: bool = False) -> Launch:
    """The launch that the options ask for; what is left out has llama-server's default.

    With no word of either vocabulary, and not `pasted` behind the program's name: one person with the trained
    context. Raises UsageError where the two are mixed or a value makes no sense.
    """
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    cache_type = given.pop("cache_type", None)
    if cache_type:
        given = {"cache_type_k": cache_type, "cache_type_v": cache_type, **given}
    if older := _older_load_mode(given.pop("mmap", None), given.pop("mlock", False)):
        given = {"load_mode": older, **given}
    people = {name: given.pop(name) for name in _PEOPLE if name in given}
    slots = {name: given.pop(name) for name in _SLOTS if name in given}
    if not (people or slots or pasted or given.keys() - {"cache_type_k", "cache_type_v"}):
        slots = {"parallel": 1, "kv_unified": False}
    return replace(_base(people, slots), **{name: _PARSERS.get(name, _as_is)(value) for name, value in given.items()})


def _base(people: dict[str, int], slots: dict[str, Any]) -> Launch:
    if people and slots:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in slots)
        raise UsageError(
            f"--context and --users speak of each person, {names} of all slots together: use one or the other."
        )
    if not people:
        if slots.get("parallel") == -1:
            slots["parallel"] = None
        return Launch(**slots)
    if "context" not in people:
        raise UsageError("--users needs --context: how many tokens does each of them get?")
    return Launch.for_users(people.get("users", 1), people["context"])


def _older_load_mode(mmap: bool | None, mlock: bool) -> str:
    """The load mode that the switches of builds before `--load-mode` stand for; empty where none was given."""
    if mlock:
        return "mlock" if mmap is False else "mmap+mlock"
    return "" if mmap is None else "mmap" if mmap else "none"


def _as_is(value: Any) -> Any:
    return value


def _gpu_layers(text: str) -> int | None:
    if text in ("auto", "all"):
        return None
    if not text.removeprefix("-").isdecimal():
        raise UsageError(f"--n-gpu-layers is {text!r}, neither a number nor auto nor all.")
    return int(text) if int(text) >= 0 else None


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(share) for share in text.replace("/", ",").split(","))
    except ValueError:
        shares = (-1.0,)
    if min(shares) < 0:
        raise UsageError(f"--tensor-split is {text!r}, not a list of shares like 3,1.")
    return shares


def _overrides(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in ",".join(texts).split(","):
        pattern, separator, buffer = text.rpartition("=")
        if not separator or not pattern or not buffer:
            raise UsageError(f"--override-tensor has {text!r}, which is not PATTERN=BUFFER.")
        pairs.append((pattern, buffer))
    return tuple(pairs)


def _flash_attention(text: str) -> str:
    # The spellings that llama-server takes (`common/arg.cpp: is_truthy` and its kin).
    words = {"on": "on", "1": "on", "true": "on", "enabled": "on"}
    words |= {"off": "off", "0": "off", "false": "off", "disabled": "off", "auto": "auto", "-1": "auto"}
    if text not in words:
        raise UsageError(f"--flash-attn is {text!r}, neither on nor off nor auto.")
    return words[text]


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "flash_attn": _flash_attention,
    "fit": lambda word: word == "on",
    "n_gpu_layers": _gpu_layers,
    "tensor_split": _shares,
    "override_tensor": _overrides,
}


# Lists and parts, for sweeps --------------------------------------------------------------------------------


_MOST_DIGITS = 10
"""llama-server's own numbers have 31 bits."""


def numbers(context: click.Context, option: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Whole numbers from 1 on, separated by commas; none where the option is left out."""
    words = _words(value)
    if not all(word.isdecimal() and len(word) <= _MOST_DIGITS and int(word) for word in words):
        raise click.BadParameter(f"{value!r} is not a list of numbers like 4096,8192.", context, option)
    return tuple(int(word) for word in words)


def cache_types(context: click.Context, option: click.Parameter, value: str | None) -> tuple[CacheType, ...]:
    """Cache types, separated by commas; none where the option is left out."""
    words = _words(value)
    known = {str(name): name for name in CACHE_TYPES}
    for word in words:
        if word not in known:
            raise click.BadParameter(f"{word!r} is none of {', '.join(known)}.", context, option)
    return tuple(known[word] for word in words)


def part(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """A part of the whole: `25%`, `full`."""
    if value is None:
        return None
    percent = value.removesuffix("%")
    if value == "full":
        return 1.0
    try:
        number = float(percent) / 100 if value.endswith("%") else -1.0
    except ValueError:
        number = -1.0
    if not 0 < number <= 1:
        raise click.BadParameter(f"{value!r} is no part of a context like 25% or full.", context, option)
    return number


def _words(value: str | None) -> list[str]:
    # A value that is given twice stands once.
    return list(dict.fromkeys(word.strip() for word in value.split(","))) if value is not None else []
