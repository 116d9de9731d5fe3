"""Against what a llama-server of October 2026 reserved on a CPU: `tests/data/server_compute.csv`."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.accuracy_sources import launch_of
from planner import Hardware, Launch, Model, Verdict, predict
from planner.units import GIB, MIB

MACHINE = Hardware.simulate(ram=1024 * GIB)

with (Path(__file__).parents[2] / "data" / "server_compute.csv").open(newline="") as _file:
    ROWS = list(csv.DictReader(_file))


@pytest.mark.parametrize("row", ROWS, ids=[",".join(list(row.values())[:10]) for row in ROWS])
def test_what_a_server_reserved_is_what_was_predicted(row: dict[str, str], gemma: Model, smollm: Model) -> None:
    plan = predict(gemma if row["model"].startswith("gemma") else smollm, launch_of(row), MACHINE)
    if not row["kv_mib"]:
        assert plan.verdict is Verdict.REFUSED
        return
    kv = [allocation.reserved_bytes for allocation in plan.allocations if allocation.component == "kv"]
    assert [round(size / MIB, 2) for size in kv] == [float(size) for size in row["kv_mib"].split()]
    assert round(plan.bytes(component="output") / MIB, 2) == float(row["output_mib"])
    assert plan.bytes(component="compute") / MIB == pytest.approx(float(row["compute_mib"]), rel=0.01, abs=0.05)


def test_the_rows_cover_what_changes_the_compute_buffer() -> None:
    assert len(ROWS) >= 74
    assert sum(not row["kv_mib"] for row in ROWS) >= 2
    for column, values in {
        "flash_attn": {"auto", "on", "off"},
        "kv_unified": {"0", "1"},
        "swa_full": {"0", "1"},
        "embeddings": {"0", "1"},
    }.items():
        assert {row[column] for row in ROWS} == values


# A server with 8 divided slots and quantised caches, at the ubatch where its logits (8 MiB) start to fit into
# the place of the masks and what lies beside them. They cost nothing then.
LOGITS_NEAR_THE_MASK = {
    ("q4_0", 32768, 112): 11.69,
    ("q4_0", 32768, 128): 13.29,
    ("q4_0", 16384, 112): 13.57,
    ("q4_0", 16384, 176): 16.45,
    ("q4_0", 16384, 184): 16.81,
    ("q4_0", 16384, 192): 13.67,
    ("q4_0", 16384, 208): 14.76,
    ("q4_0", 8192, 288): 17.12,
    ("f16", 8192, 296): 16.83,
    ("f16", 8192, 304): 17.07,
}


@pytest.mark.parametrize(("case", "mib"), LOGITS_NEAR_THE_MASK.items(), ids=str)
def test_logits_cost_nothing_where_they_fit_into_the_place_of_the_masks(
    case: tuple[str, int, int], mib: float, gemma: Model
) -> None:
    cache_type, ctx, ubatch = case
    launch = Launch(ctx_size=8 * ctx, parallel=8, flash_attn="on", ubatch_size=ubatch)
    plan = predict(gemma, launch.with_cache_type(cache_type), MACHINE)  # type: ignore[arg-type]
    assert plan.bytes(component="compute") / MIB == pytest.approx(mib, abs=0.01)
