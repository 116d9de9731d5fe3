"""Dry runs by any llama-server: started with the launch's own arguments, and stopped before it allocates.

`--fit`, which is on by default, first makes the model and its context without allocating them and prints what
they would take, in whole MiB, rounded down (`common/fit.cpp: common_memory_breakdown_print`). What a launch
leaves open is decided after that, so everything is written out here.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from planner.engine.arguments import server_arguments
from planner.engine.dry_figures import DryFigure, DryRun, summed
from planner.engine.faults import own_words
from planner.engine.find import Engine
from planner.engine.server import LlamaServer
from planner.errors import EngineError
from planner.hardware import CPU_DEVICE
from planner.launch import Launch, resolve_context
from planner.memory.plan import Component
from planner.model.ghost import dry_file
from planner.model.model import Model
from planner.units import MIB

ANSWER_TIMEOUT_S = 60.0
_POLL_S = 0.005
_EVENT = '"fit_memory_breakdown"'
_TABLE = re.compile(
    r"memory_breakdown_print: \|\s+- (?P<name>\S+).*?\|.*"
    r"=\s*(?P<model>\d+) \+\s*(?P<context>\d+) \+\s*(?P<compute>\d+)\b"
)
_TABLE_HEAD = re.compile(r"memory breakdown \[MiB\]")
_FAILED = re.compile(r"error while trying to fit params|failed to fit params")
_FOLLOWS = re.compile(r"failed to (load|create_?\s?context with) model|exiting due to model loading error")
"""What llama-server says after any refusal, with the path of the ghost that it was asked about."""
_ERROR = re.compile(r"^[\d.]+ E (?P<message>.+)$", re.MULTILINE)
_LOADING = re.compile(r"load_tensors: loading model tensors|main: model loaded")
_COLUMNS: tuple[tuple[str, tuple[Component, ...]], ...] = (
    ("model", ("weights",)),
    ("context", ("kv", "state")),
    ("compute", ("compute",)),
)


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of llama.cpp's table: whole MiB of one device, of the host, or of a further type of buffer."""

    name: str
    model: int
    context: int
    compute: int

    @property
    def device(self) -> str:
        """Whose memory it is."""
        return CPU_DEVICE if self.name == "Host" or self.name.startswith("CPU") else self.name


def server_dry_run(
    model: Model, launch: Launch, engine: Engine, *, cancelled: Callable[[], bool] = lambda: False
) -> DryRun:
    """What this llama-server would reserve for the launch, to whole MiB; output buffers are not in it.

    Raises EngineError where it cannot be started, dies or says nothing, and Cancelled. It has ended when this
    returns.
    """
    if "--fit" not in engine.flags:
        raise EngineError("This llama-server has no --fit, so it makes no dry run.", "Use a newer build.")
    with dry_file(model) as path:
        command = (str(engine.path), *server_arguments(_explicit(model, launch), path.absolute(), engine.flags))
        with LlamaServer(
            (*command, "--fit", "on", *_json_lines(engine)),
            ready_timeout_s=ANSWER_TIMEOUT_S,
            cancelled=cancelled,
            stop_grace_s=0,
        ) as server:
            rows = _await_rows(server)
            refusal = "" if rows else read_refusal(server.log_text)
    return DryRun(way="llama-server", build=engine.build, figures=summed(_figures(rows)), refusal=refusal)


def _explicit(model: Model, launch: Launch) -> Launch:
    """The launch with its context written out: the first table is that of what was asked, before `--fit` gives
    every slot the trained context.
    """
    if launch.ctx_size:
        return launch
    return replace(launch, ctx_size=resolve_context(launch, model.hyperparameters.n_ctx_train).n_ctx)


def _json_lines(engine: Engine) -> tuple[str, ...]:
    return ("--log-jsonl",) if "--log-jsonl" in engine.flags else ()


def _await_rows(server: LlamaServer) -> list[_Row]:
    """The first table; nothing where llama.cpp refused."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        has_ended = server.has_ended()  # asked first: the log read next is complete then
        text = server.log_text
        rows = read_rows(text)
        if rows or _FAILED.search(text):
            return rows
        if _LOADING.search(text):
            raise EngineError("This llama-server loads the model without a dry run first.", "Use a newer build.")
        if has_ended:
            server.check_alive()
        if time.monotonic() > deadline:
            said = own_words(text) or "nothing"
            raise EngineError(
                f"llama-server made no dry run within {ANSWER_TIMEOUT_S:g} seconds. It last said: {said}."
            )
        server.pause(_POLL_S)


def read_rows(text: str) -> list[_Row]:
    """The first complete table of a log: the event of `--log-jsonl`, else the printed one."""
    rows: list[_Row] = []
    in_table = False
    for line in text.splitlines():
        if _EVENT in line:
            return _event_rows(line)
        if match := _TABLE.search(line):
            rows.append(_Row(match["name"], int(match["model"]), int(match["context"]), int(match["compute"])))
        elif _TABLE_HEAD.search(line):
            in_table = True
        elif in_table and rows:
            return rows
    return []


def read_refusal(text: str) -> str:
    """llama.cpp's own words for why it makes no such context."""
    errors = [match["message"].strip() for match in _ERROR.finditer(text)]
    said = [one for one in dict.fromkeys(errors) if not (_FAILED.search(one) or _FOLLOWS.search(one))]
    return " / ".join(said) or own_words(text)


def _event_rows(line: str) -> list[_Row]:
    try:
        data = json.loads(line)["data"]
        return [_Row(row["name"], int(row["model"]), int(row["context"]), int(row["compute"])) for row in data["rows"]]
    except (ValueError, KeyError, TypeError):
        return []  # the line is still being written, or means something else in this build


def _figures(rows: list[_Row]) -> Iterator[DryFigure]:
    for row in rows:
        for column, components in _COLUMNS:
            size_bytes = getattr(row, column) * MIB
            yield DryFigure(
                device=row.device,
                components=components,
                size_bytes=size_bytes,
                low_bytes=size_bytes,
                high_bytes=size_bytes + MIB - 1,
            )
