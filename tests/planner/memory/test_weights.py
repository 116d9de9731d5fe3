from __future__ import annotations

import pytest

from planner import Hardware, Launch, Model, predict
from planner.model.architectures import ARCHITECTURES
from planner.units import GIB, MIB

MACHINE = Hardware.simulate(ram=64 * GIB)
WITHOUT_AVX2 = Hardware.simulate(ram=64 * GIB, cpu_features=frozenset({"avx", "f16c"}))
ARM = Hardware.simulate(ram=64 * GIB, cpu_features=frozenset({"asimddp"}), cpu_architecture="aarch64")


def buffers(model: Model, launch: Launch, machine: Hardware = MACHINE) -> dict[str, float]:
    plan = predict(model, launch, machine)
    return {
        allocation.buffer: round(allocation.reserved_bytes / MIB, 2)
        for allocation in plan.allocations
        if allocation.component == "weights"
    }


def test_gemma_s_weights_with_a_rearranged_copy(gemma: Model) -> None:
    """q4_K layers are rearranged; so is nothing else, for the tied table is q8_0."""
    assert buffers(gemma, Launch()) == {"CPU_Mapped": 235.16, "CPU_REPACK": 12.66}


def test_nothing_is_rearranged_when_it_is_switched_off(gemma: Model) -> None:
    assert buffers(gemma, Launch(repack=False)) == {"CPU_Mapped": 235.16}


def test_nothing_is_rearranged_without_avx2(gemma: Model) -> None:
    assert buffers(gemma, Launch(), WITHOUT_AVX2) == {"CPU_Mapped": 235.16}


def test_arm_rearranges_other_types_and_says_that_this_is_an_estimate(gemma: Model) -> None:
    plan = predict(gemma, Launch(), ARM)
    (copy,) = (allocation for allocation in plan.allocations if allocation.buffer == "CPU_REPACK")
    assert copy.certainty == "estimated"
    assert (copy.low_bytes, copy.high_bytes) == (0, copy.reserved_bytes)
    assert copy.reserved_bytes > 170 * MIB  # the tied table of 262,144 tokens is q8_0


def test_smollm_s_q4_1_is_never_rearranged(smollm: Model) -> None:
    assert set(buffers(smollm, Launch())) == {"CPU_Mapped"}


@pytest.mark.parametrize("load_mode", ["none", "mlock", "dio"])
def test_a_copied_file_holds_each_tensor_padded_to_32_bytes(gemma: Model, load_mode: str) -> None:
    plan = predict(gemma, Launch(load_mode=load_mode, repack=False), MACHINE)  # type: ignore[arg-type]
    (buffer,) = (allocation for allocation in plan.allocations if allocation.component == "weights")
    assert buffer.buffer == "CPU"
    assert gemma.tensor_bytes <= buffer.reserved_bytes < gemma.tensor_bytes + 32 * len(gemma.tensors)


@pytest.mark.parametrize("load_mode", ["auto", "mmap", "mmap+mlock"])
def test_a_mapped_file_spans_its_tensors(gemma: Model, load_mode: str) -> None:
    plan = predict(gemma, Launch(load_mode=load_mode, repack=False), MACHINE)  # type: ignore[arg-type]
    last = max(tensor.offset + tensor.nbytes for tensor in gemma.tensors)
    assert plan.bytes(component="weights") == last


def test_both_models_are_in_the_table(gemma: Model, smollm: Model) -> None:
    assert {gemma.architecture, smollm.architecture} <= set(ARCHITECTURES)
