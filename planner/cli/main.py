"""The entry point: which command runs, and how errors become a sentence and an exit code."""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from planner import __version__
from planner.errors import DoesNotFitError, PlannerError, UsageError, words_of

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

_MEASURE = "--measure"


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`--measure [MODEL]` is the command `measure`, with every option that it has, wherever it stands."""
        if (behind := _behind_measure(args)) is not None:
            args = ["measure", *behind]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            command = self.get_command(ctx, "measure")
            if command is None or not any(error.option_name in option.opts for option in command.params):
                raise
            named = next((word for word in args if word in _COMMANDS), None)
            needs = f"{error.option_name} needs --measure (or a command, see --help)."
            raise click.UsageError(_misplaced(error.option_name, named) if named else needs, ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, function = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), function)
        return command


def _behind_measure(args: list[str]) -> list[str] | None:
    """The arguments without `--measure`, models behind its `=` last; None where it is not among them, or belongs to
    a command, or only the version is asked for.
    """
    end = args.index("--") if "--" in args else len(args)
    words, models = args[:end], args[end + 1 :]
    places = [i for i, word in enumerate(words) if word == _MEASURE or word.startswith(f"{_MEASURE}=")]
    if not places or "--version" in words or any(word in _COMMANDS for word in words[: places[0]]):
        return None
    models += [words[i].partition("=")[2] for i in places if "=" in words[i]]
    return [*(word for i, word in enumerate(words) if i not in places), *(["--", *models] if models else [])]


def _misplaced(options: str, command: str) -> str:
    return f"Put {options} behind {command}, not before it."


@click.command(cls=_LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="planner")
@click.option(
    _MEASURE,
    metavar="[MODEL]",
    is_flag=False,
    flag_value="",
    expose_value=False,  # `parse_args` has made a command of it by then; here it is for --help
    help="Measure llama.cpp with f16, q8_0 and q4_0 caches, hold it against the prediction, recommend. "
    "Without MODEL: the best model found here, else a small ghost. It takes the options of `planner measure`: "
    "--context N, --users M, --ghost, --engine PATH, --soak MINUTES and more.",
)
@click.option(
    "--engine",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The llama-server to use; or llama-cpp-python, which stands in where there is none.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def cli(ctx: click.Context, engine: Path | None, as_json: bool) -> None:
    """Predict what llama-server will hold on this machine, then measure it.

    Without a command: the app, or a plain report where standard output is no terminal.
    """
    if ctx.invoked_subcommand is not None:
        stray = [*(["--engine"] if engine else []), *(["--json"] if as_json else [])]
        if stray:
            raise click.UsageError(_misplaced(", ".join(stray), ctx.invoked_subcommand))
        return
    if as_json or not sys.stdout.isatty():
        from planner.cli.report import print_report

        print_report(engine, as_json=as_json)
        return
    from planner.cli.app import run_app

    run_app(engine)


def main() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    # None where whoever started us closed them.
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
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
        return _say(words_of(error), EXIT_FAILED)
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
