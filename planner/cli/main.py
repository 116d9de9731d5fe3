"""The entry point: which command runs, and how errors become a sentence and an exit code."""

from __future__ import annotations

import errno
import importlib
import io
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from planner import __version__
from planner.cli.amount import Amount
from planner.errors import DoesNotFitError, PlannerError, UsageError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DOES_NOT_FIT = 3

_COMMANDS = {
    "plan": ("planner.cli.plan", "plan"),
    "inspect": ("planner.cli.inspect", "inspect"),
    "hardware": ("planner.cli.hardware", "hardware"),
    "measure": ("planner.cli.measure", "measure_command"),
    "history": ("planner.cli.history", "history"),
}
"""Command: module and function; a module is imported when its command runs, so that each starts fast."""

_NO_MODEL = "\0"
"""What `--measure` and `--ghost` stand for without a model behind it: nothing that a person can type."""


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, function = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), function)
        return command


@click.command(cls=_LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="planner")
@click.option(
    "--measure",
    "measured",
    metavar="[MODEL]",
    is_flag=False,
    flag_value=_NO_MODEL,
    default=None,
    help="Measure llama.cpp with f16, q8_0 and q4_0 caches, hold it against the prediction, recommend. "
    "Without MODEL: the best model found here, else a small ghost.",
)
@click.option(
    "--ghost",
    "ghost",
    metavar="[MODEL]",
    is_flag=False,
    flag_value=_NO_MODEL,
    default=None,
    help="Measure a ghost of MODEL: a true header without weights. MODEL may be cut off behind its header, or a "
    "name of the catalogue.",
)
@click.option("--context", type=click.IntRange(1), metavar="N", help="Tokens for each person.  [default: 8192]")
@click.option("--users", type=click.IntRange(1), metavar="M", help="People served at once.  [default: 2]")
@click.option(
    "--engine",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The llama-server to use; or llama-cpp-python, which stands in where there is none.",
)
@click.option("--force", is_flag=True, help="Measure also what is predicted not to fit.")
@click.option(
    "--ready-timeout",
    type=Amount(min=0.1),
    metavar="SECONDS",
    help="How long a server may load its model.  [default: 600]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def cli(
    ctx: click.Context,
    measured: str | None,
    ghost: str | None,
    context: int | None,
    users: int | None,
    engine: Path | None,
    force: bool,
    ready_timeout: float | None,
    as_json: bool,
) -> None:
    """Predict what llama-server will hold on this machine, then measure it.

    Without a command: the app, or a plain report where standard output is no terminal.
    """
    given = {
        "--ghost": ghost,
        "--context": context,
        "--users": users,
        "--force": force or None,
        "--ready-timeout": ready_timeout,
    }
    stray = [name for name, value in given.items() if value is not None]
    if ctx.invoked_subcommand is not None:
        stray += [name for name, value in {"--measure": measured, "--engine": engine}.items() if value is not None]
        if stray or as_json:
            names = ", ".join([*stray, *(["--json"] if as_json else [])])
            raise click.UsageError(f"Put {names} behind {ctx.invoked_subcommand}, not before it.")
        return
    if measured is not None:
        from planner.cli.measure import run_measure

        named = [name for name in (measured, ghost) if name not in (None, _NO_MODEL)]
        if len(named) > 1:
            raise click.UsageError(f"One model at a time, not {' and '.join(map(str, named))}.")
        run_measure(
            model=named[0] if named else None,
            ghost=ghost is not None,
            context=() if context is None else (context,),
            users=() if users is None else (users,),
            engines=() if engine is None else (engine,),
            force=force,
            ready_timeout=ready_timeout,
            as_json=as_json,
        )
        return
    if stray:
        raise click.UsageError(f"{', '.join(stray)} needs --measure (or a command, see --help).")
    if as_json or not sys.stdout.isatty():
        from planner.cli.report import print_report

        print_report(engine, as_json=as_json)
        return
    from planner.cli.app import run_app

    run_app(engine)


def main() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a `?` where the locale has no such letter
    _stop_in_order(signal.SIGTERM)
    if hasattr(signal, "SIGHUP"):
        _stop_in_order(signal.SIGHUP)
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    try:
        result: Any = cli.main(arguments, prog_name="planner", standalone_mode=False)
    except click.exceptions.Abort:
        return _say("Stopped; nothing is left running.", EXIT_FAILED)
    except KeyboardInterrupt:
        return _say("Stopped; nothing is left running.", EXIT_FAILED)
    except click.ClickException as error:
        where = f" See `{error.ctx.command_path} --help`." if isinstance(error, click.UsageError) and error.ctx else ""
        return _say(f"{error.format_message()}{where}", error.exit_code)
    except UsageError as error:
        return _say(str(error), EXIT_USAGE)
    except DoesNotFitError as error:
        return _say(str(error), EXIT_DOES_NOT_FIT)
    except PlannerError as error:
        return _say(str(error), EXIT_FAILED)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        return _say(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.", EXIT_FAILED)
    return result if isinstance(result, int) else 0


def _say(sentence: str, exit_code: int) -> int:
    click.echo(f"planner: {sentence}", err=True)
    return exit_code


def _stop_in_order(number: signal.Signals) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        return  # nohup

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(number, interrupt)
