"""`planner plan MODEL`: predict one launch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from planner.cli.render import render_plan
from planner.errors import UsageError
from planner.hardware import Hardware
from planner.launch import CACHE_TYPES, CacheType, Launch
from planner.memory import Verdict, predict
from planner.model import Model
from planner.units import parse_size

_PEOPLE = ("context", "users")
_SERVER = ("ctx_size", "parallel", "kv_unified")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--context", type=click.IntRange(1), metavar="N", help="People's words: tokens for each person.")
@click.option("--users", type=click.IntRange(1), metavar="M", help="People's words: people at once.")
@click.option("-c", "--ctx-size", type=click.IntRange(0), metavar="N", help="llama-server's: tokens of all slots.")
@click.option(
    "-np", "--parallel", type=int, metavar="N", help="llama-server's: slots; left out or -1, 4 that share."
)
@click.option(
    "-kvu/-no-kvu", "--kv-unified/--no-kv-unified", default=None, help="llama-server's: one cache for all."
)
@click.option("-ctk", "--cache-type-k", type=click.Choice(CACHE_TYPES), default="f16", show_default=True)
@click.option("-ctv", "--cache-type-v", type=click.Choice(CACHE_TYPES), default="f16", show_default=True)
@click.option("--cache-type", type=click.Choice(CACHE_TYPES), help="Both cache types at once.")
@click.option("-fa", "--flash-attn", type=click.Choice(["on", "off", "auto"]), default="auto", show_default=True)
@click.option("-b", "--batch-size", type=click.IntRange(1), default=2048, show_default=True)
@click.option("-ub", "--ubatch-size", type=click.IntRange(1), default=512, show_default=True)
@click.option("--swa-full", is_flag=True, help="Sliding-window layers keep the whole context.")
@click.option("--repack/--no-repack", " /-nr", default=True, help="Rearrange weights for the processor.")
@click.option(
    "-lm",
    "--load-mode",
    type=click.Choice(["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]),
    default="auto",
    show_default=True,
)
@click.option("-cram", "--cache-ram", type=click.IntRange(-1), default=8192, show_default=True, metavar="MIB")
@click.option("-ctxcp", "--ctx-checkpoints", type=click.IntRange(0), default=32, show_default=True)
@click.option("--embedding", "--embeddings", "embeddings", is_flag=True, help="Serve embeddings.")
@click.option("--ram", metavar="SIZE", help="Plan for a machine with this much free RAM, as in 16G.")
@click.option("--header-only", is_flag=True, help="Accept a file that is cut off behind its header.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plan(
    model: Path,
    context: int | None,
    users: int | None,
    ctx_size: int | None,
    parallel: int | None,
    kv_unified: bool | None,
    cache_type_k: CacheType,
    cache_type_v: CacheType,
    cache_type: CacheType | None,
    ram: str | None,
    header_only: bool,
    as_json: bool,
    **settings: object,
) -> int:
    """Predict what llama-server will hold for MODEL, and whether that fits.

    Say what you want in people's words (--context, --users) or in llama-server's own (-c, -np, -kvu); a
    command that you already run can be pasted behind `planner plan`. Without either: one person, the trained
    context.
    """
    server_words: dict[str, object] = {"ctx_size": ctx_size, "parallel": parallel, "kv_unified": kv_unified}
    launch = _launch(context, users, server_words)
    launch = replace(launch, cache_type_k=cache_type or cache_type_k, cache_type_v=cache_type or cache_type_v)
    launch = replace(launch, **settings)  # type: ignore[arg-type]
    hardware = Hardware.detect() if ram is None else Hardware.simulate(ram=parse_size(ram))
    opened = Model.open(model, header_only=header_only)
    if context is None and users is None and not any(value is not None for value in server_words.values()):
        launch = replace(launch, parallel=1, kv_unified=False)
    overhead = _learned_overhead(opened)
    prediction = predict(opened, launch, hardware, overhead_bytes=overhead)
    if as_json:
        import json

        from planner.export.documents import plan_document

        click.echo(json.dumps(plan_document(opened, prediction), indent=2))
    else:
        click.echo(render_plan(opened, prediction))
    return 3 if prediction.verdict in (Verdict.TOO_BIG, Verdict.REFUSED) else 0


def _launch(context: int | None, users: int | None, server_words: dict[str, object]) -> Launch:
    given = [f"--{name.replace('_', '-')}" for name, value in server_words.items() if value is not None]
    if context is None and users is None:
        if server_words["parallel"] == -1:
            server_words["parallel"] = None
        return Launch(**{name: value for name, value in server_words.items() if value is not None})  # type: ignore[arg-type]
    if given:
        raise UsageError(
            f"--context and --users speak of each person, {' and '.join(given)} of all slots together: "
            "use one or the other."
        )
    if context is None:
        raise UsageError("--users needs --context: how many tokens does each of them get?")
    return Launch.for_users(users or 1, context)


def _learned_overhead(model: Model) -> int | None:
    from planner.reconcile.record import Record, default_folder

    return Record(default_folder()).learned_overhead(model, None)
