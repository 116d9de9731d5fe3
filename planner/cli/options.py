"""The options that make a `Launch`, in people's words and in llama-server's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from planner.errors import UsageError
from planner.launch import CACHE_TYPES, Launch

PROGRAM = "llama-server"
_IGNORED_KEY = "planner.ignored"

_NO_MEMORY_VALUES = """
    --host --port -t,--threads -tb,--threads-batch --threads-http -a,--alias --api-key --api-key-file
    --chat-template --chat-template-file --temp,--temperature --top-k --top-p --min-p --repeat-penalty
    -s,--seed -n,--predict,--n-predict --prio --slot-save-path -to,--timeout --log-file --path
    --reasoning-format --reasoning-budget -lv,--verbosity,--log-verbosity -fit,--fit -fitt,--fit-target
    -fitc,--fit-ctx --cache-reuse --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --numa
"""
_NO_MEMORY_FLAGS = """
    --jinja --no-jinja --metrics --webui --no-webui --slots --no-slots --props -cb,--cont-batching
    -nocb,--no-cont-batching --warmup --no-warmup -v,--verbose --offline --log-jsonl --perf --no-perf
    --context-shift --no-context-shift
"""
"""Options of llama-server that a pasted command may hold and that decide no memory."""

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
    click.option("-fa", "--flash-attn", type=click.Choice(["on", "off", "auto"])),
    click.option("-b", "--batch-size", type=click.IntRange(1), metavar="N"),
    click.option("-ub", "--ubatch-size", type=click.IntRange(1), metavar="N"),
    click.option("--swa-full", is_flag=True, default=None, help="Windowed layers keep the whole context."),
    click.option("--repack/--no-repack", " /-nr", default=None, help="Rearrange weights for the processor."),
    click.option("-lm", "--load-mode", type=click.Choice(["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"])),
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
    click.option("--no-host", is_flag=True, default=None, help="Host weights bypass pinned memory."),
)


def launch_options(command: _Command) -> _Command:
    """Give a command every option that makes a launch, and those that a pasted command may hold beside them."""
    for option in reversed((*_OPTIONS, *_no_memory_options())):
        command = option(command)
    return command


def _no_memory_options() -> Iterator[Callable[[_Command], _Command]]:
    for names, is_flag in ((_NO_MEMORY_VALUES, False), (_NO_MEMORY_FLAGS, True)):
        for group in names.split():
            yield click.option(
                *group.split(","),
                f"no_memory_{group.strip('-').split(',')[0].replace('-', '_')}_{is_flag}",
                is_flag=is_flag,
                default=None,
                hidden=True,
                expose_value=False,
                callback=_note_ignored,
            )


def _note_ignored(context: click.Context, option: click.Parameter, value: object) -> None:
    if value is not None:
        context.meta.setdefault(_IGNORED_KEY, []).append(option.opts[-1])


def ignored_options() -> list[str]:
    """The options of this call that decide no memory."""
    ignored: list[str] = click.get_current_context().meta.get(_IGNORED_KEY, [])
    return ignored


def chosen_model(words: tuple[str, ...], named: Path | None) -> Path:
    """The model of a call: the one word, or `--model` in a pasted command, whose program name is left out."""
    words = tuple(word for word in words if Path(word).name.removesuffix(".exe") != PROGRAM)
    if named is not None and not words:
        return named
    if named is None and len(words) == 1:
        return Path(words[0])
    if not words:
        raise click.UsageError("Missing argument 'MODEL'.")
    both = (*words, *([str(named)] if named else []))
    raise click.UsageError(f"One model at a time, not {' and '.join(both)}.")


def launch_from(options: dict[str, Any]) -> Launch:
    """The launch that the options ask for; what is left out has llama-server's default.

    With neither vocabulary: one person with the trained context. Raises UsageError where the two are mixed or
    a value makes no sense.
    """
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    cache_type = given.pop("cache_type", None)
    if cache_type:
        given = {"cache_type_k": cache_type, "cache_type_v": cache_type, **given}
    people = {name: given.pop(name) for name in _PEOPLE if name in given}
    slots = {name: given.pop(name) for name in _SLOTS if name in given}
    return replace(_base(people, slots), **{name: _PARSERS.get(name, _as_is)(value) for name, value in given.items()})


def _base(people: dict[str, int], slots: dict[str, Any]) -> Launch:
    if people and slots:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in slots)
        raise UsageError(
            f"--context and --users speak of each person, {names} of all slots together: use one or the other."
        )
    if slots:
        if slots.get("parallel") == -1:
            slots["parallel"] = None
        return Launch(**slots)
    if not people:
        return Launch(parallel=1, kv_unified=False)
    if "context" not in people:
        raise UsageError("--users needs --context: how many tokens does each of them get?")
    return Launch.for_users(people.get("users", 1), people["context"])


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


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "n_gpu_layers": _gpu_layers,
    "tensor_split": _shares,
    "override_tensor": _overrides,
}
