"""The causes that the figures prove, one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import measured_as_planned, sample

from planner import Hardware, Launch, MemoryPlan, Model, predict
from planner.engine.find import EngineDevice
from planner.engine.log import Buffer, BufferKind, EngineLog, LoggedCache, read_log
from planner.measure import Measurement
from planner.reconcile.reconciliation import Reconciliation, Row, reconcile
from planner.units import GIB, MIB

LOGS = Path(__file__).parents[2] / "data" / "logs"
Measure = Callable[..., Measurement]


def resized(log: EngineLog, kind: BufferKind, extra_bytes: int, device: str | None = None) -> EngineLog:
    """The log with the last buffer of that kind larger by so much."""
    last = [b for b in log.of_kind(kind) if device in (None, b.device)][-1]
    buffers = tuple(replace(b, size_bytes=b.size_bytes + extra_bytes) if b is last else b for b in log.buffers)
    return replace(log, buffers=buffers)


def row_of(plan: MemoryPlan, log: EngineLog, component: str) -> Row:
    reconciliation = reconcile(plan, measured_as_planned(plan, log=log))
    return next(row for row in reconciliation.reserved if row.component == component)


# Reserved ---------------------------------------------------------------------------------------------------


def test_a_context_that_llama_cpp_made_otherwise(plan: MemoryPlan) -> None:
    log = resized(measured_as_planned(plan).log, "kv", -5 * MIB)
    row = row_of(plan, replace(log, context={"n_ctx": 2048, "n_seq_max": 2}), "kv")
    assert row.cause == "llama.cpp made n_ctx 2,048, not 4,096"
    assert row_of(plan, replace(log, context={"n_ctx": 4096, "n_seq_max": 2}), "kv").is_unexplained


def test_a_cache_of_another_type_than_was_asked_for(gemma: Model, hardware: Hardware) -> None:
    asked = predict(gemma, Launch.for_users(2, 2048, cache_type="q8_0"), hardware, prompt_tokens=600)
    made = predict(gemma, Launch.for_users(2, 2048, cache_type="f16"), hardware, prompt_tokens=600)
    caches = [a.reserved_bytes for a in made.allocations if a.component == "kv"]

    def kept(k_type: str) -> EngineLog:
        lines = tuple(
            LoggedCache(cells=1, layers=1, k_type=k_type, v_type=k_type, k_bytes=size // 2, v_bytes=size // 2)
            for size in caches
        )
        return replace(measured_as_planned(made).log, caches=lines)

    assert row_of(asked, kept("f16"), "kv").cause == (
        "this build keeps keys in f16, not q8_0 and values in f16, not q8_0"
    )
    # A type of a fork says nothing of sizes, and the types that were asked for explain nothing.
    assert row_of(asked, kept("turbo3"), "kv").is_unexplained
    assert row_of(asked, kept("q8_0"), "kv").is_unexplained


def test_a_mapped_span_over_tensors_of_another_buffer(plan: MemoryPlan) -> None:
    log = measured_as_planned(plan).log
    row = row_of(plan, resized(log, "model", 5 * MIB, "CPU_Mapped"), "weights (CPU_Mapped)")
    assert row.cause == "the mapped span counts tensors that lie in another buffer, too"
    row = row_of(plan, resized(log, "model", 50 * MIB, "CPU_Mapped"), "weights (CPU_Mapped)")
    assert row.cause == "unexplained: 50.0 MiB more than predicted"


def test_a_workspace_of_flash_attention_on_a_card(gemma: Model) -> None:
    card = Hardware.simulate(ram=16 * GIB, vram=[8 * GIB])
    plan = predict(gemma, Launch.for_users(1, 32768, cache_type="q8_0"), card, prompt_tokens=600)
    log = measured_as_planned(plan).log
    high = next(a.high_bytes for a in plan.allocations if a.component == "compute" and a.device == "CUDA0")
    assert high is not None
    one_layer = 600 * MIB  # well beyond the range of the estimate
    caches = (
        LoggedCache(cells=1, layers=2, k_type="q8_0", v_type="q8_0", k_bytes=_q8(one_layer), v_bytes=_q8(one_layer)),
    )
    more = resized(replace(log, caches=caches), "compute", one_layer, "CUDA0")
    assert row_of(plan, more, "compute on CUDA0").cause == (
        "a workspace for one layer's keys and values in f16 (q8_0 is dequantised there)"
    )
    plain = predict(gemma, Launch.for_users(1, 32768), card, prompt_tokens=600)
    log = resized(replace(measured_as_planned(plain).log, caches=caches), "compute", one_layer, "CUDA0")
    assert row_of(plain, log, "compute on CUDA0").is_unexplained


def _q8(f16_bytes: int) -> int:
    """The size of f16 keys in q8_0."""
    return f16_bytes // 64 * 34


REMOTE = Hardware.simulate(ram=24 * GIB).with_accelerators(
    [
        EngineDevice(name=f"RPC{i}", description=f"127.0.0.1:5005{2 + i}", total_bytes=24 * GIB, free_bytes=24 * GIB)
        for i in range(2)
    ]
)


def test_remote_devices_of_a_real_log_are_those_of_the_plan(gemma: Model) -> None:
    """A launch of b11434 over two RPC servers on the loopback network."""
    launch = Launch(ctx_size=8192, parallel=2, tensor_split=(3, 1), flash_attn="on")
    plan = predict(gemma, launch, REMOTE, prompt_tokens=4)
    log = read_log((LOGS / "b11434-lv4-two-devices.log").read_text(encoding="utf-8").splitlines())
    rows = {row.component: row for row in reconcile(plan, measured_as_planned(plan, log=log)).reserved}
    assert not [name for name in rows if "[" in name]
    for name in ("weights (RPC0)", "weights (RPC1)", "kv on RPC0", "kv on RPC1"):
        assert (rows[name].delta_bytes, rows[name].cause) == (0, "")
        assert rows[name].device in ("RPC0", "RPC1")
    assert not [row for row in rows.values() if row.is_unexplained]


# Resident ---------------------------------------------------------------------------------------------------


def held(plan: MemoryPlan, more_bytes: int, file_bytes: int | None = None, **log_fields: object) -> Reconciliation:
    """A process that held so much more, with these lines in its log."""
    resident = plan.resident_bytes() + more_bytes
    measurement = measured_as_planned(plan, resident_bytes=resident)
    steady = replace(sample(resident), anonymous_bytes=None if file_bytes is None else resident - file_bytes)
    log = replace(measurement.log, **log_fields)  # type: ignore[arg-type]
    return reconcile(plan, replace(measurement, steady=steady, log=log))


def test_a_prompt_cache_that_has_grown(plan: MemoryPlan) -> None:
    run = held(plan, 120 * MIB, prompt_cache_bytes=120 * MIB)
    assert run.resident.cause == "the prompt cache has grown (+120.0 MiB)"
    process = next(a for a in plan.allocations if a.buffer == "process")
    assert run.learned_overhead_bytes == process.resident_bytes  # and not with the cache in it


def test_several_causes_and_what_is_left(gemma: Model, hardware: Hardware, plan: MemoryPlan) -> None:
    checkpoints = plan.resident_bytes(component="checkpoints")
    run = held(plan, 130 * MIB, prompt_cache_bytes=60 * MIB, checkpoints_bytes=checkpoints + 30 * MIB)
    assert run.resident.cause.startswith("checkpoints as logged (+30.0 MiB); the prompt cache has grown (+60.0 MiB); ")
    assert run.resident.cause.endswith(": learned now")
    assert not run.resident.is_unexplained


def test_pages_that_are_not_in_memory_teach_nothing_of_the_process(plan: MemoryPlan) -> None:
    mapped = next(a.resident_bytes for a in plan.allocations if a.buffer == "CPU_Mapped")
    run = held(plan, -100 * MIB, file_bytes=mapped - 100 * MIB)
    assert run.resident.cause == ("pages of mapped weights are not in memory (-100.0 MiB)")
    assert run.learned_overhead_bytes is None


def test_pages_that_another_process_maps_as_well_are_there(plan: MemoryPlan) -> None:
    resident = plan.resident_bytes()
    mapped = next(a.resident_bytes for a in plan.allocations if a.buffer == "CPU_Mapped")
    measurement = measured_as_planned(plan)
    steady = replace(sample(resident), anonymous_bytes=resident - mapped, file_bytes=mapped // 2)  # by its share
    run = reconcile(plan, replace(measurement, steady=steady))
    assert run.learned_overhead_bytes is not None


def test_dormant_pages_of_weights_that_were_copied(plan: MemoryPlan) -> None:
    process = next(a for a in plan.allocations if a.buffer == "process")
    mapped = next(a.resident_bytes for a in plan.allocations if a.buffer == "CPU_Mapped")
    copied = next(a.resident_bytes for a in plan.allocations if a.buffer == "CPU_REPACK")
    run = held(plan, copied, file_bytes=mapped + process.resident_bytes + copied)
    assert run.resident.cause.startswith("dormant pages of weights that were copied elsewhere (+12.7 MiB)")
    assert run.learned_overhead_bytes is None
    # As many pages of other files are none of that.
    assert "dormant" not in held(plan, copied, file_bytes=mapped + copied).resident.cause


def test_an_engine_that_rearranges_nothing_is_taken_into_account(plan: MemoryPlan) -> None:
    process = next(a for a in plan.allocations if a.buffer == "process")
    copied = next(a.resident_bytes for a in plan.allocations if a.buffer == "CPU_REPACK")
    buffers = tuple(b for b in measured_as_planned(plan).log.buffers if b.device != "CPU_REPACK")
    run = held(plan, -copied, buffers=buffers)
    assert run.resident.cause == f"weights (CPU_REPACK) as reserved (-{copied / MIB:.1f} MiB)"
    assert run.learned_overhead_bytes == pytest.approx(process.resident_bytes, abs=MIB // 50)


def test_a_log_that_does_not_say_teaches_only_where_the_estimate_is_narrow(gemma: Model, hardware: Hardware) -> None:
    def learned(plan: MemoryPlan) -> int | None:
        return held(plan, 0, buffers=()).learned_overhead_bytes

    plan = predict(gemma, Launch.for_users(2, 2048), hardware, prompt_tokens=600)
    assert learned(plan) is not None
    wide = tuple(
        replace(a, low_bytes=0, high_bytes=9 * a.reserved_bytes) if a.component == "compute" else a
        for a in plan.allocations
    )
    assert learned(replace(plan, allocations=wide)) is None


def test_a_mapped_span_that_differs_teaches_nothing(plan: MemoryPlan) -> None:
    buffers = tuple(
        Buffer(kind=b.kind, device=b.device, size_bytes=b.size_bytes + 5 * MIB) if b.device == "CPU_Mapped" else b
        for b in measured_as_planned(plan).log.buffers
    )
    assert held(plan, 5 * MIB, buffers=buffers).learned_overhead_bytes is None
