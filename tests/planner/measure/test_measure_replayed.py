"""Measurements of real logs on devices and settings that are not here: what is told is held against the prediction."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from replaying_engine import write_replay

from planner import Hardware, Launch, Model, predict
from planner.engine.find import identify
from planner.measure import Load, measure
from planner.reconcile.reconciliation import reconcile
from planner.sweeps import seen_by

LOGS = Path(__file__).parents[2] / "data" / "logs"
ONE = "  RPC0: 127.0.0.1:50052 (24105 MiB, 24105 MiB free)"
TWO = f"{ONE}\n  RPC1: 127.0.0.1:50053 (24105 MiB, 24105 MiB free)"


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a POSIX script")
@pytest.mark.parametrize(
    ("name", "devices", "launch", "rows"),
    [
        (
            "b11434-lv4-two-devices",
            TWO,
            Launch(ctx_size=8192, parallel=2, tensor_split=(3, 1), flash_attn="on"),
            {"weights (RPC0)", "weights (RPC1)", "kv on RPC0", "kv on RPC1", "output on CPU"},
        ),
        (
            "b11434-lv4-partial-offload",
            ONE,
            Launch(ctx_size=4096, parallel=1, n_gpu_layers=10, flash_attn="on"),
            {"weights (RPC0)", "kv on RPC0", "kv on CPU", "output on CPU"},
        ),
        (
            "b11434-lv4-q8-auto-np",
            "",
            Launch(ctx_size=8192, cache_type_k="q8_0", cache_type_v="q8_0"),
            {"weights (CPU_Mapped)", "kv", "output"},
        ),
    ],
)
def test_a_real_log_is_reconciled_line_by_line(
    gemma: Model, smollm: Model, tmp_path: Path, name: str, devices: str, launch: Launch, rows: set[str]
) -> None:
    model = smollm if "partial" in name else gemma
    engine = identify(write_replay(tmp_path / "llama-server", LOGS / f"{name}.log", devices), "option")
    assert [device.name for device in engine.devices] == ["RPC0", "RPC1"][: devices.count("RPC")]
    measurement = measure(model, launch, engine, load=Load(fill=0.1))
    assert measurement.everyone.users == launch.slots
    plan = predict(model, launch, seen_by(engine, Hardware.detect()), prompt_tokens=measurement.everyone.prompt_tokens)
    told = {row.component: row for row in reconcile(plan, measurement).reserved}
    assert rows <= set(told)
    assert {component: told[component].delta_bytes for component in rows} == dict.fromkeys(rows, 0)
    assert not [row for row in told.values() if row.is_unexplained]
    assert "cleaning up before exit" in measurement.log_text
