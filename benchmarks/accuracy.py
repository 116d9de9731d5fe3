"""How exact the predictions are, against everything that is known of llama.cpp's own figures.

python -m benchmarks.accuracy
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks import oracle
from benchmarks._support import model_files, print_table
from benchmarks.accuracy_sources import (
    Case,
    architecture_cases,
    find_shared,
    full_size_cases,
    log_cases,
    server_cases,
    server_compute_cases,
)
from benchmarks.live_sources import live_cases
from benchmarks.placement_sources import placement_cases
from planner.memory.compute import TOLERANCE
from planner.model import Model

LIVE_PER_HEADER = 20


def main() -> None:
    """Print the table, and every case that is not exact."""
    models = {path.stem: Model.open(path) for path in model_files().values()}
    shared = find_shared()
    sources: list[tuple[str, Iterable[Case]]] = [
        ("llama-server, two real models: caches and output", server_cases(models)),
    ]
    if shared:
        sources += [
            ("archs/truth.csv: cells, layers, K, V, state", architecture_cases(shared / "archs")),
            ("fullsize/truth.csv: context bytes", full_size_cases(shared / "fullsize")),
            ("evidence/logs.csv: public logs", log_cases(shared / "evidence")),
        ]
        if oracle.AVAILABLE:
            sources += [
                (
                    f"llama.cpp, now: {LIVE_PER_HEADER} random launches of every header",
                    live_cases(shared, LIVE_PER_HEADER),
                ),
                ("llama.cpp, now: two devices, every flag", placement_cases(shared)),
            ]
    estimates = tuple(server_compute_cases(models))
    rows, wrong = [], []
    for name, source in sources:
        cases = tuple(source)
        rows.append(_row(name, cases))
        wrong += [case for case in cases if not case.exact]
    rows.append(_row("llama-server, two real models: compute (estimated)", estimates))
    print_table(("held against", "cases", "exact", "worst deviation"), rows)
    if shared is None:
        print("\nThe reference data (../shared, or PLANNER_SHARED) are not here: their sources are left out.")
    far_off = [case for case in estimates if case.deviation > TOLERANCE]
    print(f"\nNot exact: {len(wrong)}. Estimates further off than they say ({TOLERANCE:.0%}): {len(far_off)}.")
    for case in (*wrong, *far_off):
        print(f"  {case}")


def _row(name: str, cases: tuple[Case, ...]) -> tuple[str, str, str, str]:
    worst = max((case.deviation for case in cases), default=0.0)
    return name, f"{len(cases):,}", f"{sum(case.exact for case in cases):,}", f"{worst:.2%}" if worst else "0"


if __name__ == "__main__":
    main()
