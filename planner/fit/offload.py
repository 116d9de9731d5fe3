"""How many layers fit on the accelerators."""

from __future__ import annotations

from dataclasses import replace

from planner.errors import ModelError
from planner.hardware import Hardware
from planner.launch import Launch
from planner.memory import MemoryPlan, Verdict, predict
from planner.model import Model


def fit_layers(model: Model, launch: Launch, hardware: Hardware, *, projector: Model | None = None) -> Launch:
    """The launch with as many layers on the accelerators as they hold with a margin; all on the processor if none.

    A machine without accelerators, and a launch that says itself how many, come back unchanged.
    """
    if not hardware.accelerators or launch.n_gpu_layers is not None or launch.device == "none":
        return launch
    try:
        n_layer_all = model.hyperparameters.n_layer_all
    except ModelError:
        return launch  # the plan says what is wrong with the header
    for count in range(n_layer_all + 1, 0, -1):
        candidate = replace(launch, n_gpu_layers=count)
        if _accelerators_hold(predict(model, candidate, hardware, projector=projector)):
            return candidate
    return replace(launch, device="none")


def _accelerators_hold(plan: MemoryPlan) -> bool:
    """Whether each keeps its margin free. What its estimates may be off by is no reason to leave it empty."""
    return all(
        device.verdict is not Verdict.TOO_BIG and (plan.headroom_bytes(device.pool) or 0) >= device.pool.margin_bytes
        for device in plan.devices
        if not device.is_cpu
    )
