"""A Mac's middle zone, and devices that are used only when `--device` names them."""

from __future__ import annotations

from dataclasses import replace

from planner import Hardware, Launch, Model, Verdict, predict
from planner.hardware import Device
from planner.units import GIB, MIB

LAUNCH = Launch(ctx_size=8192, parallel=1, kv_unified=False, cache_ram=0)


def machine(usable_bytes: int, pressure_bytes: int | None) -> Hardware:
    """A machine of one memory."""
    hardware = Hardware.simulate(ram=usable_bytes)
    (pool,) = hardware.pools
    return replace(hardware, pools=(replace(pool, pressure_bytes=pressure_bytes),))


def test_what_others_can_make_room_for_is_tight(smollm: Model) -> None:
    needed = predict(smollm, LAUNCH, machine(8 * GIB, None)).needed_bytes(machine(8 * GIB, None).host)
    short = needed - 20 * MIB
    plan = predict(smollm, LAUNCH, machine(short, needed))
    assert plan.verdict is Verdict.TIGHT
    assert plan.verdict_reason == (
        "20.0 MiB more host memory is needed than is free now: other programs are pushed out, and the machine "
        "grows slow."
    )
    for pressure in (None, needed - 1):
        assert predict(smollm, LAUNCH, machine(short, pressure)).verdict is Verdict.TOO_BIG


def test_a_device_that_is_left_out_unless_named_can_be_named(smollm: Model) -> None:
    here = Hardware.simulate(ram=8 * GIB)
    both = replace(here, devices=(*here.devices, Device(name="Vulkan0", pool=here.host.name, only_named=True)))
    assert {a.device for a in predict(smollm, LAUNCH, both).allocations} == {"CPU"}
    named = predict(smollm, replace(LAUNCH, device="Vulkan0"), both)
    assert named.refusal == ""
    assert named.bytes(component="kv", device="Vulkan0") > 0
    assert "Vulkan0" in predict(smollm, replace(LAUNCH, device="Vulkan1"), both).refusal
