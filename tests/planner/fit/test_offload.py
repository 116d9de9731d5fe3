"""How many layers go to accelerators."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner import Hardware, Launch, Model, Verdict, predict
from planner.fit import fit_layers
from planner.model.gguf import GgufHeader
from planner.units import GIB, MIB

LAUNCH = Launch(ctx_size=8192, parallel=1)
ALL_LAYERS = 18 + 1
"""Of Gemma 3 270M, and its output layer."""


def machine(*vram: int) -> Hardware:
    return Hardware.simulate(ram=64 * GIB, vram=vram)


def cards_hold(model: Model, launch: Launch, hardware: Hardware) -> bool:
    """With their margin. Tight by what the estimates may be off is no reason to leave a card empty."""
    plan = predict(model, launch, hardware)
    return all(plan.headroom_bytes(card.pool) >= card.pool.margin_bytes for card in plan.devices if not card.is_cpu)


def test_a_machine_without_accelerators_changes_nothing(gemma: Model) -> None:
    assert fit_layers(gemma, LAUNCH, machine()) == LAUNCH


@pytest.mark.parametrize("own", [{"n_gpu_layers": 3}, {"n_gpu_layers": 0}, {"device": "none"}])
def test_what_a_person_said_stays(gemma: Model, own: dict[str, Any]) -> None:
    launch = replace(LAUNCH, **own)
    assert fit_layers(gemma, launch, machine(8 * GIB)) == launch


def test_a_large_card_takes_every_layer(gemma: Model) -> None:
    assert fit_layers(gemma, LAUNCH, machine(8 * GIB)).n_gpu_layers == ALL_LAYERS


def test_a_small_card_takes_as_many_as_it_holds_with_a_margin(gemma: Model) -> None:
    whole = predict(gemma, LAUNCH, machine(8 * GIB)).bytes(device="CUDA0")
    hardware = machine(whole - 20 * MIB)
    launch = fit_layers(gemma, LAUNCH, hardware)
    assert launch.n_gpu_layers is not None and 0 < launch.n_gpu_layers < ALL_LAYERS
    assert cards_hold(gemma, launch, hardware)
    assert not cards_hold(gemma, replace(launch, n_gpu_layers=launch.n_gpu_layers + 1), hardware)


def test_a_card_that_holds_nothing_is_left_alone(gemma: Model) -> None:
    launch = fit_layers(gemma, LAUNCH, machine(16 * MIB))
    assert (launch.device, launch.n_gpu_layers) == ("none", None)


@pytest.mark.parametrize("architecture", ["llama", "tomorrow"])
def test_a_header_that_says_too_little_is_left_to_its_plan(architecture: str) -> None:
    header = GgufHeader(
        version=3, metadata={"general.architecture": architecture}, tensors=(), alignment=32, data_offset=0
    )
    model = Model(path=Path("model.gguf"), header=header)
    assert fit_layers(model, LAUNCH, machine(8 * GIB)) == LAUNCH
    expected = Verdict.REFUSED if architecture == "llama" else Verdict.UNKNOWN
    assert predict(model, LAUNCH, machine(8 * GIB)).verdict is expected
