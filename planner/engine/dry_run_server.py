"""Dry runs by any llama-server: started with the launch's own arguments, and stopped before it allocates.

`--fit`, which is on by default, first makes the model and its context without allocating them and prints what
they would take, in whole MiB, rounded down (`common/fit.cpp: common_memory_breakdown_print`). What a launch
leaves open is decided after that, so everything is written out here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from planner.engine.arguments import server_arguments
from planner.engine.dry_figures import DryFigure, DryRun, summed
from planner.engine.faults import own_words
from planner.engine.find import Engine
from planner.engine.log_table import DeviceMemory, event_rows, is_table_head, table_row
from planner.engine.server import LlamaServer
from planner.errors import EngineError
from planner.launch import Launch, resolve_context
from planner.memory.plan import Component
from planner.model.ghost import dry_file
from planner.model.model import Model
from planner.units import MIB

ANSWER_TIMEOUT_S = 60.0
_POLL_S = 0.005
_FAILED = re.compile(r"error while trying to fit params|failed to fit params")
_FOLLOWS = re.compile(r"failed to (load|create_?\s?context with) model|exiting due to model loading error")
"""What llama-server says after any refusal, with the path of the ghost that it was asked about."""
_ERROR = re.compile(r"^[\d.]+ E (?P<message>.+)$", re.MULTILINE)
_PROJECTOR = re.compile(r"memory usage of mmproj is (?P<mib>\d+[.,]\d+) MiB")
_LOADING = re.compile(r"load_tensors: loading model tensors|main: model loaded")


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
            projector_bytes = read_projector(server.log_text)
    return DryRun(
        way="llama-server",
        build=engine.build,
        figures=summed(_figures(rows)),
        projector_bytes=projector_bytes,
        refusal=refusal,
    )


def _explicit(model: Model, launch: Launch) -> Launch:
    """The launch with its context written out: the first table is that of what was asked, before `--fit` gives
    every slot the trained context.
    """
    if launch.ctx_size:
        return launch
    return replace(launch, ctx_size=resolve_context(launch, model.hyperparameters.n_ctx_train).n_ctx)


def _json_lines(engine: Engine) -> tuple[str, ...]:
    return ("--log-jsonl",) if "--log-jsonl" in engine.flags else ()


def _await_rows(server: LlamaServer) -> list[DeviceMemory]:
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


def read_rows(text: str) -> list[DeviceMemory]:
    """The first complete table of a log: the event of `--log-jsonl`, else the printed one."""
    rows: list[DeviceMemory] = []
    in_table = False
    for line in text.splitlines():
        if (event := event_rows(line)) is not None:
            return list(event)
        if (row := table_row(line)) is not None:
            rows.append(row)
        elif is_table_head(line):
            in_table = True
        elif in_table and rows:
            return rows
    return []


def read_projector(text: str) -> int | None:
    """What the server says of a projector before it counts the model, which leaves room for it."""
    match = _PROJECTOR.search(text)
    return round(float(match["mib"].replace(",", ".")) * MIB) if match else None


def read_refusal(text: str) -> str:
    """llama.cpp's own words for why it makes no such context."""
    errors = [match["message"].strip() for match in _ERROR.finditer(text)]
    said = [one for one in dict.fromkeys(errors) if not (_FAILED.search(one) or _FOLLOWS.search(one))]
    return " / ".join(said) or own_words(text)


def _figures(rows: list[DeviceMemory]) -> Iterator[DryFigure]:
    for row in rows:
        columns: tuple[tuple[int, tuple[Component, ...]], ...] = (
            (row.model_bytes, ("weights",)),
            (row.context_bytes, ("kv", "state")),
            (row.compute_bytes, ("compute",)),
        )
        for size_bytes, components in columns:
            yield DryFigure(
                device=row.device,
                components=components,
                size_bytes=size_bytes,
                low_bytes=size_bytes,
                high_bytes=size_bytes + MIB - 1,
            )
