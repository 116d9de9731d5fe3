"""How exact the predictions are, against everything that is known of llama.cpp's own figures.

python -m benchmarks.accuracy
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks import oracle
from benchmarks._support import model_files, print_table
from benchmarks.accuracy_sources import (
    Case,
    architecture_cases,
    find_shared,
    full_size_cases,
    log_cases,
    server_cases,
)
from benchmarks.compute_sources import Estimate, compute_sources, estimates, summarise
from benchmarks.live_sources import live_cases
from benchmarks.placement_sources import placement_cases
from planner.model import Model

LIVE_PER_HEADER = 20
COMPUTE_PER_HEADER = 8


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
    rows, wrong = [], []
    for name, source in sources:
        cases = tuple(source)
        rows.append(_row(name, cases))
        wrong += [case for case in cases if not case.exact]
    print_table(("held against", "cases", "exact", "worst deviation"), rows)
    if shared is None:
        print("\nThe reference data (../shared, or PLANNER_SHARED) are not here: their sources are left out.")
    print(f"\nNot exact: {len(wrong)}.")
    for case in wrong:
        print(f"  {case}")
    _print_estimates(models, shared)


def _print_estimates(models: Mapping[str, Model], shared: Path | None) -> None:
    rows, missed = [], []
    for name, source in compute_sources(models, shared, COMPUTE_PER_HEADER):
        held = estimates(source)
        rows.append(_estimate_row(name, held))
        missed += [estimate for estimate in held if not estimate.in_range]
    print()
    header = ("compute buffers, estimated", "cases", "median", "95 %", "95 %", "worst", "5 % or 2 MiB", "range held")
    print_table(header, rows)
    print(f"\nOut of their range: {len(missed)}.")
    for estimate in missed:
        print(f"  {estimate}")


def _estimate_row(name: str, held: Sequence[Estimate]) -> tuple[str, ...]:
    found = summarise(held)
    shares = (found.worst, found.near, found.in_range)
    percentiles = (f"{found.median:.2%}", f"{found.percentile_95:.2%}", f"{found.off_mib:.2f} MiB")
    return name, f"{found.count:,}", *percentiles, *(f"{share:.2%}" for share in shares)


def _row(name: str, cases: tuple[Case, ...]) -> tuple[str, str, str, str]:
    worst = max((case.deviation for case in cases), default=0.0)
    return name, f"{len(cases):,}", f"{sum(case.exact for case in cases):,}", f"{worst:.2%}" if worst else "0"


if __name__ == "__main__":
    main()
