"""Keeping what grows after the start within the machine."""

from __future__ import annotations

from dataclasses import replace

from planner.hardware import Hardware
from planner.launch import Launch
from planner.memory import NOTHING_LEARNED, Learned, predict
from planner.model import Model
from planner.units import MIB

CACHE_RAM_STEP_MIB = 256


def bound_growth(
    model: Model,
    launch: Launch,
    hardware: Hardware,
    *,
    learned: Learned = NOTHING_LEARNED,
    projector: Model | None = None,
) -> Launch:
    """The launch with a prompt cache and checkpoints that the machine can hold beside everything else.

    llama-server's defaults (8192 MiB and 32 checkpoints per slot) are an out-of-memory plan on a small
    machine. A launch that grows no further than memory allows comes back unchanged; so does one that does
    not fit in the first place, since nothing that grows is to blame.
    """
    plan = predict(model, launch, hardware, learned=learned, projector=projector)
    headroom = plan.headroom_bytes(hardware.host)
    if headroom is None or headroom < hardware.host.margin_bytes:
        return launch
    spare = headroom - hardware.host.margin_bytes
    while (growth := plan.growth_bytes(component="checkpoints")) > spare // 2 and launch.ctx_checkpoints:
        launch = replace(launch, ctx_checkpoints=launch.ctx_checkpoints // 2)
        plan = predict(model, launch, hardware, learned=learned, projector=projector)
    room_mib = (spare - growth) // MIB // CACHE_RAM_STEP_MIB * CACHE_RAM_STEP_MIB
    if launch.cache_ram < 0 or launch.cache_ram > room_mib:
        launch = replace(launch, cache_ram=max(0, room_mib))
    return launch
