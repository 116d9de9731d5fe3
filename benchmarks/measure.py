"""What measuring costs, and how near the predictions come before and after one run has taught what a process holds.

python -m benchmarks.measure
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks._support import model_files, print_table
from planner import Hardware, Launch, Model, predict
from planner.campaign import run_cells
from planner.engine.arguments import server_arguments
from planner.engine.find import Engine, find_engine
from planner.launch import resolve_context
from planner.measure import Load, Measurement, measure
from planner.measure.users import Workload, workload_for
from planner.reconcile.record import Record
from planner.sweeps import cells_for

_TIMES = 3
_USERS, _CONTEXT = 2, 1024


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took: in seconds on the clock, and of the processor in whoever drives the server."""

    wall_s: float
    driver_cpu_s: float
    driver_bytes: int


def main() -> None:
    """Print both tables."""
    engine = find_engine()
    costs, errors = [], []
    for name, path in model_files().items():
        model = Model.open(path)
        costs.append((name, *cost_of_measuring(model, engine)))
        errors += [(name, *row) for row in errors_of_predictions(model, engine)]
    print_table(("measuring", "wall", "bare", "ratio", "processor beside", "our peak", "of server's"), costs)
    print()
    print_table(("resident memory", "cache", "measured MiB", "before learning", "after one run"), errors)


# Cost ------------------------------------------------------------------------------------------------------


def cost_of_measuring(model: Model, engine: Engine) -> tuple[str, ...]:
    """The same requests to a server alone and to one that is measured, by turns; the middle of several ratios."""
    launch = Launch.for_users(_USERS, _CONTEXT)
    context = resolve_context(launch, model.hyperparameters.n_ctx_train)
    workload = workload_for(context)
    bare, measured, held = [], [], 0
    for _ in range(_TIMES):
        bare.append(_bare_run(model, launch, engine, workload))
        cost, measurement = _measured_run(model, launch, engine)
        measured.append(cost)
        held = max(held, measurement.peak_bytes or 0)
    ratio = statistics.median(one.wall_s / other.wall_s for one, other in zip(measured, bare, strict=True))
    wall, alone = (statistics.median(cost.wall_s for cost in costs) for costs in (measured, bare))
    cpu = statistics.median(cost.driver_cpu_s for cost in measured)
    ours = max(cost.driver_bytes for cost in measured)
    return (
        f"{wall:.1f} s",
        f"{alone:.1f} s",
        f"{ratio:.2f} x",
        f"{cpu / wall:.1%}",
        f"{ours / (1 << 20):.0f} MiB",
        f"{ours / held:.0%}",
    )


def _measured_run(model: Model, launch: Launch, engine: Engine) -> tuple[Cost, Measurement]:
    us = psutil.Process()
    before = sum(us.cpu_times()[:2])
    start = time.monotonic()
    measurement = measure(model, launch, engine, load=Load())
    wall = time.monotonic() - start
    return Cost(wall, sum(us.cpu_times()[:2]) - before, us.memory_info().rss), measurement


def _bare_run(model: Model, launch: Launch, engine: Engine, workload: Workload) -> Cost:
    """Start, everyone at once, one alone, stop: with nothing but what asks."""
    command = [str(engine.path), *server_arguments(launch, model.path, engine.flags)]
    start = time.monotonic()
    with subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port := _free_port())],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while not _is_ready(port):
            time.sleep(0.05)
        _ask_all(port, _USERS, workload)
        _ask_all(port, 1, workload)
        process.terminate()
    return Cost(time.monotonic() - start, 0.0, 0)


def _ask_all(port: int, users: int, workload: Workload) -> None:
    threads = [threading.Thread(target=_ask, args=(port, slot, workload)) for slot in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _ask(port: int, slot: int, workload: Workload) -> None:
    body = {
        "prompt": [1000 + (slot * 977 + index * 31) % 5000 for index in range(workload.prompt_tokens)],
        "n_predict": workload.generated_tokens,
        "ignore_eos": True,
        "id_slot": slot,
        "cache_prompt": False,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        answer.read()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# Errors ----------------------------------------------------------------------------------------------------


def errors_of_predictions(model: Model, engine: Engine) -> Sequence[tuple[str, ...]]:
    """Predicted resident memory against what was measured: as on a new machine, and after one run of the model."""
    hardware = Hardware.detect()
    cells = cells_for(
        model, hardware, [engine], users=[_USERS], contexts=[_CONTEXT], cache_types=["f16", "q8_0", "q4_0"]
    )
    with tempfile.TemporaryDirectory() as folder:
        record = Record(Path(folder))
        run_cells(model, cells[:1], record, force=True)
        runs = run_cells(model, cells, record, force=True).runs
    rows = []
    for run in runs:
        measured = run.resident.measured_bytes or 0
        workload = workload_for(resolve_context(run.plan.launch, model.hyperparameters.n_ctx_train))
        unlearned = predict(model, run.plan.launch, hardware, prompt_tokens=workload.prompt_tokens)
        rows.append(
            (
                run.plan.launch.cache_type_k,
                f"{measured / (1 << 20):.1f}",
                f"{unlearned.resident_bytes(device='CPU') / measured - 1:+.2%}",
                f"{run.resident.predicted_bytes / measured - 1:+.2%}",
            )
        )
    return rows


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # two servers' idle threads must not disturb each other
    main()
