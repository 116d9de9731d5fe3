"""What a driver says that a server held on each accelerator, against what was predicted: deltas and their causes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_runs import measured_as_planned
from test_lessons import DRIVER, table, with_driver

from planner import Hardware, Launch, MemoryPlan, Model, predict
from planner.engine.dry_figures import DryFigure, DryRun
from planner.engine.find import EngineDevice
from planner.engine.log import Buffer, EngineLog, LoggedCache
from planner.hardware import HOST_POOL
from planner.measure.measurement import DeviceSample
from planner.reconcile.lessons import DriverLesson
from planner.reconcile.reconciliation import Reconciliation, Row, reconcile
from planner.units import GIB, MIB, format_bytes

CARD = with_driver(Hardware.simulate(ram=16 * GIB, vram=[8 * GIB]))
LIKELY, LEAST, MOST = 400 * MIB, 200 * MIB, 800 * MIB
"""Of what a CUDA driver takes, before it was measured."""
SHORT = (
    "less than the least estimate of the driver's context (200.0 MiB): some or all of it was there before, or another "
    "process gave memory back"
)


def plan_on(model: Model, hardware: Hardware = CARD, cache_type: str = "f16") -> MemoryPlan:
    launch = Launch.for_users(2, 2048, cache_type=cache_type)  # type: ignore[arg-type]
    return predict(model, launch, hardware, prompt_tokens=600)


def buffers_on(plan: MemoryPlan, device: str = "CUDA0") -> int:
    """llama.cpp's own there."""
    return sum(a.reserved_bytes for a in plan.allocations if a.device == device and a.buffer != "driver")


def told(
    plan: MemoryPlan,
    *,
    process: int | None,
    shared: int | None = None,
    taken: int | None = None,
    free: int | None = 4 * GIB,
    device: str = "CUDA0",
    log: EngineLog | None = None,
    log_text: str = "",
    dry_run: DryRun | None = None,
    reason: str = "nvml: lists no such process",
) -> Reconciliation:
    """A run that held what was predicted, of which the driver told this."""
    shares = next(d.pool == HOST_POOL for d in plan.hardware.nameable if d.name == device)
    seen = DeviceSample(
        device=device,
        shares_memory=shares,
        own_bytes=process,
        shared_bytes=shared,
        taken_bytes=taken,
        free_bytes=None if shares else free,
        reason="" if process is not None else reason,
    )
    measurement = measured_as_planned(plan, log_text=log_text)
    measurement = replace(measurement, steady=replace(measurement.steady, devices=(seen,)), log=log or measurement.log)
    return reconcile(plan, measurement, dry_run)


def row_of(run: Reconciliation) -> Row:
    (row,) = run.on_devices
    return row


def driver_of(run: Reconciliation, device: str = "CUDA0") -> Row:
    return next(row for row in run.reserved if row.component == f"driver on {device}")


def test_a_card_that_held_what_was_predicted_agrees(gemma: Model) -> None:
    plan = plan_on(gemma)
    held = buffers_on(plan) + LIKELY
    figures = tuple(
        DryFigure(device=name, components=("kv",), size_bytes=size, low_bytes=size, high_bytes=size)
        for name, size in (("CUDA0", 30 * MIB), ("CUDA0", 12 * MIB), ("CPU", MIB))
    )
    dry_run = DryRun(way="llama-server", build="0abc123", figures=figures)
    row = row_of(told(plan, process=held, taken=held, dry_run=dry_run))
    assert (row.component, row.device, row.cause) == ("resident on CUDA0", "CUDA0", "")
    assert (row.predicted_bytes, row.measured_bytes) == (plan.bytes(device="CUDA0"), held)
    assert row.delta_bytes == 0
    assert row.dry_run_bytes == 42 * MIB
    assert row.reserved_bytes == buffers_on(plan)
    assert row.witness == "what the driver says that the process holds"


@pytest.mark.parametrize(
    ("beside_mib", "cause", "driver"),
    [
        (400, "", 400),
        (650, "driver context, within the range of the estimate (200.0 MiB to 800.0 MiB)", 650),
        (90, "the driver takes 90.0 MiB for itself, less than predicted", 90),
        (
            1100,
            "a driver context of up to 800.0 MiB explains 400.0 MiB of it; unexplained: 300.0 MiB more",
            1100,
        ),
        (-50, "unexplained: 450.0 MiB less than predicted", None),
    ],
)
def test_what_the_process_holds_beside_the_buffers_is_the_drivers(
    gemma: Model, beside_mib: int, cause: str, driver: int | None
) -> None:
    plan = plan_on(gemma)
    run = told(plan, process=buffers_on(plan) + beside_mib * MIB)
    assert row_of(run).cause == driver_of(run).cause == cause
    assert round((driver_of(run).measured_bytes or 0) / MIB) == beside_mib
    lessons = [(lesson.driver, round(lesson.size_bytes / MIB)) for lesson in run.lessons.drivers]
    assert lessons == ([] if driver is None else [(DRIVER, driver)])


def test_a_buffer_that_is_larger_in_the_log_is_named_first(gemma: Model) -> None:
    plan = plan_on(gemma)
    log = measured_as_planned(plan).log
    more = 64 * MIB
    buffers = tuple(
        replace(b, size_bytes=b.size_bytes + more) if (b.kind, b.device) == ("kv", "CUDA0") else b for b in log.buffers
    )
    count = sum((b.kind, b.device) == ("kv", "CUDA0") for b in log.buffers)
    run = told(plan, process=buffers_on(plan) + count * more + LIKELY, log=replace(log, buffers=buffers))
    assert row_of(run).cause == f"kv on CUDA0 as reserved (+{format_bytes(count * more)})"
    assert row_of(run).delta_bytes == count * more
    assert driver_of(run).cause == ""


def test_buffers_that_the_driver_moved_to_the_machines_memory_have_spilled(gemma: Model) -> None:
    plan = plan_on(gemma)
    log = measured_as_planned(plan).log
    pinned = Buffer(kind="compute", device="CUDA_Host", size_bytes=30 * MIB)
    log = replace(log, buffers=(*log.buffers, pinned))
    moved = 100 * MIB
    run = told(plan, process=buffers_on(plan) - moved, shared=moved + 30 * MIB, free=0, log=log)
    spilled = "spilled to shared memory: {} beyond what is pinned lie in the machine's memory; "
    assert row_of(run).cause == spilled.format("100.0 MiB") + "the driver takes 0 KiB for itself, less than predicted"
    run = told(plan, process=buffers_on(plan) - moved, shared=moved + LIKELY + 30 * MIB, free=0, log=log)
    assert row_of(run).cause == spilled.format("500.0 MiB").removesuffix("; ")
    run = told(plan, process=buffers_on(plan) - moved, shared=moved - 20 * MIB, free=0, log=log)
    assert row_of(run).cause == (
        spilled.format("50.0 MiB") + "unexplained: 450.0 MiB less than predicted"  # 500 MiB less in all
    )
    # With the driver's context beside them nothing shows whether a small one hides what has spilled.
    run = told(plan, process=buffers_on(plan) + LEAST - moved, shared=moved + 30 * MIB, log=log)
    assert row_of(run).cause == (
        "spilled to shared memory in part, or a driver that takes little: "
        "100.0 MiB beyond what is pinned lie in the machine's memory"
    )
    assert run.lessons.drivers == ()
    # What is pinned on purpose has not spilled, and what is nowhere is not explained.
    run = told(plan, process=buffers_on(plan) - moved, shared=30 * MIB, log=log)
    assert row_of(run).cause == "unexplained: 500.0 MiB less than predicted"
    assert row_of(run).delta_bytes == -500 * MIB


@pytest.mark.parametrize(("beyond_mib", "teaches"), [(4, True), (50, True), (5120, False)])
def test_what_lies_in_the_machines_memory_is_named_where_the_card_has_all_of_it(
    gemma: Model, beyond_mib: int, teaches: bool
) -> None:
    plan = plan_on(gemma)
    run = told(plan, process=buffers_on(plan) + LIKELY, shared=beyond_mib * MIB)
    size = format_bytes(beyond_mib * MIB)
    named = f"{size} beyond what is pinned lie in the machine's memory: spilled, or the driver's own"
    assert (row_of(run).cause, row_of(run).delta_bytes) == (named if beyond_mib > 8 else "", 0)
    # Drivers keep a little there themselves; of more than the least that they take, some may be buffers.
    assert bool(run.lessons.drivers) == teaches


def test_both_witnesses_are_told_where_they_disagree(gemma: Model) -> None:
    plan = plan_on(gemma)
    held = buffers_on(plan) + LIKELY
    row = row_of(told(plan, process=held, taken=held + 500 * MIB))
    assert (row.measured_bytes, row.delta_bytes) == (held, 0)
    assert row.cause.startswith("500.0 MiB more became less free on the device: another process took it")
    row = row_of(told(plan, process=held, taken=held - 90 * MIB))
    assert row.cause == "90.0 MiB less became less free on the device: another process gave it back"


@pytest.mark.parametrize(
    ("beside_mib", "free", "cause"),
    [
        (400, 4 * GIB, ""),
        (700, 4 * GIB, "driver context, within the range of the estimate (200.0 MiB to 800.0 MiB)"),
        (40, 4 * GIB, SHORT),
        (150, 4 * GIB, SHORT),
        (
            1100,
            4 * GIB,
            "a driver context of up to 800.0 MiB explains 400.0 MiB of it; unexplained: 300.0 MiB more, "
            "by another process perhaps",
        ),
        (-90, 4 * GIB, "another process gave back 90.0 MiB or more meanwhile"),
        (
            -90,
            MIB,
            "the device is full: 90.0 MiB spilled to shared memory, or another process gave some back",
        ),
    ],
)
def test_where_the_driver_does_not_tell_what_became_less_free_stands_in_and_is_called_so(
    gemma: Model, beside_mib: int, free: int, cause: str
) -> None:
    plan = plan_on(gemma)
    run = told(plan, process=None, taken=buffers_on(plan) + beside_mib * MIB, free=free)
    row = row_of(run)
    assert (row.component, row.cause) == ("taken on CUDA0", cause)
    assert row.witness == (
        "what became less free since before the start, whoever took it (nvml: lists no such process)"
    )
    # One such figure is no driver's: llama.cpp's own tables would have to say it.
    assert run.lessons.drivers == ()


def test_without_any_figure_the_reason_is_the_cause(gemma: Model) -> None:
    row = row_of(told(plan_on(gemma), process=None, taken=None, reason="not told on macOS"))
    assert (row.component, row.measured_bytes, row.delta_bytes) == ("resident on CUDA0", None, None)
    assert (row.cause, row.is_unexplained, row.witness) == ("not told: not told on macOS", False, "")


def test_a_workspace_of_flash_attention_lies_beside_the_drivers_context(gemma: Model) -> None:
    plan = plan_on(gemma, cache_type="q8_0")
    layer = 128 * MIB  # of keys and values in f16; 34 bytes of q8_0 stand for 64 of those
    cache = LoggedCache(
        cells=1, layers=3, k_type="q8_0", v_type="q8_0", k_bytes=3 * layer // 128 * 34, v_bytes=3 * layer // 128 * 34
    )
    log = replace(measured_as_planned(plan).log, caches=(cache,))
    row = row_of(told(plan, process=buffers_on(plan) + MOST + layer, log=log))
    assert row.cause == (
        "a workspace for one layer's keys and values in f16 beside the driver's context (q8_0 is dequantised there)"
    )
    beyond = row_of(told(plan, process=buffers_on(plan) + MOST + 2 * layer, log=log))
    assert beyond.cause == "a driver context of up to 800.0 MiB explains 400.0 MiB of it; unexplained: 256.0 MiB more"


def test_the_sampled_figure_comes_before_llama_cpps_tables_which_are_told_where_they_differ(gemma: Model) -> None:
    plan = plan_on(gemma)
    log = [*table(8192, 7000, 1000), "srv  llama_server: model loaded", *table(8192, 7000 - 1000 - 900, 1000)]
    run = told(plan, process=buffers_on(plan) + 410 * MIB, log_text="\n".join(log))
    row = driver_of(run)
    assert round((row.measured_bytes or 0) / MIB) == 410
    assert row.cause.endswith("llama.cpp's tables leave 900.0 MiB, others' included")
    (lesson,) = run.lessons.drivers
    assert replace(lesson, size_bytes=0) == DriverLesson(
        device="CUDA0", description="RTX 4090", driver=DRIVER, size_bytes=0
    )


SHARED = Hardware.simulate(ram=96 * GIB).with_accelerators(
    [
        EngineDevice(
            name="Vulkan0",
            description="Radeon 8060S Graphics (RADV GFX1151)",
            total_bytes=96 * GIB,
            free_bytes=95 * GIB,
        )
    ]
)


def test_on_graphics_that_share_the_memory_what_is_shared_is_what_is_held(gemma: Model) -> None:
    plan = plan_on(gemma, SHARED)
    own, likely = 20 * MIB, 100 * MIB
    shared = buffers_on(plan, "Vulkan0") + likely - own
    run = told(plan, process=own, shared=shared, device="Vulkan0")
    row = row_of(run)
    assert (row.component, row.cause) == ("resident on Vulkan0", "")
    assert row.measured_bytes == own + shared
    less = told(plan, process=None, taken=0, device="Vulkan0", reason="x")
    assert "are not counted as taken by the driver" in row_of(less).cause
