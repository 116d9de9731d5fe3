"""How far predicted resident memory is from what an engine really holds, before any run and after one.

python -m benchmarks.learning [ENGINE]      a llama-server, or llama-cpp-python

Each model runs with f16, q8_0 and q4_0 caches. "Before" is the prediction with nothing learned; "after" is the same
with what the first of these runs taught, and nothing of the others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks._support import model_files, print_table
from planner import Model, predict
from planner.campaign import run_campaign
from planner.engine.library import AnyEngine, find_any_engine
from planner.fit import MAIN_CACHE_TYPES
from planner.hardware import CPU_DEVICE
from planner.memory import Learned, LearnedSize, MemoryPlan
from planner.reconcile.reconciliation import Reconciliation
from planner.sweeps import launches_for, machine_of
from planner.units import format_mib

USERS = 2
CONTEXT = 2048
HEADER = ("model", "cache", "measured MiB", "before", "error", "after", "error")


def main() -> None:
    """Print the table."""
    engine = find_any_engine(Path(sys.argv[1]) if sys.argv[1:] else None)
    print_table(HEADER, [row for name, path in model_files().items() for row in _rows(name, path, engine)])


def _rows(name: str, path: Path, engine: AnyEngine) -> Iterator[tuple[str, ...]]:
    model = Model.open(path)
    hardware = machine_of(engine)
    launches = launches_for(model, hardware, users=USERS, ctx_per_user=CONTEXT, cache_types=MAIN_CACHE_TYPES)
    campaign = run_campaign(model, launches, engine, None)
    overhead = campaign.runs[0].learned_overhead_bytes
    if overhead is None:
        raise SystemExit(f"The first run of {name} taught nothing: {campaign.runs[0].resident.cause}.")
    learned = Learned(overhead={(): LearnedSize(overhead)})
    for index, run in enumerate(campaign.runs):
        measured = run.measurement.steady.resident_bytes
        if measured is None:
            raise SystemExit("This system does not say what a process holds.")
        before = run.plan.resident_bytes(device=CPU_DEVICE)
        after = _again(model, run, learned, engine).resident_bytes(device=CPU_DEVICE)
        yield (
            name,
            run.plan.launch.cache_type_k,
            format_mib(measured),
            format_mib(before),
            _error(before, measured),
            format_mib(after),
            "taught by this run" if index == 0 else _error(after, measured),
        )


def _again(model: Model, run: Reconciliation, learned: Learned, engine: AnyEngine) -> MemoryPlan:
    """The prediction of a run, made anew with what was learned."""
    prompt_tokens = run.measurement.everyone.prompt_tokens
    return predict(
        model,
        run.plan.launch,
        run.plan.hardware,
        learned=learned,
        prompt_tokens=prompt_tokens,
        program=engine.program,
    )


def _error(predicted: int, measured: int) -> str:
    return f"{100 * (predicted - measured) / measured:+.2f} %"


if __name__ == "__main__":
    main()
