from __future__ import annotations

import pytest

from planner import Hardware
from planner.errors import UsageError
from planner.hardware import Pool
from planner.units import GIB, MIB


def test_a_simulated_machine_has_all_its_memory_free_and_one_device() -> None:
    machine = Hardware.simulate(ram=16 * GIB)
    assert (machine.host.total_bytes, machine.host.usable_bytes) == (16 * GIB, 16 * GIB)
    assert [(device.name, device.pool) for device in machine.devices] == [("CPU", "host")]
    assert "avx2" in machine.cpu_features


@pytest.mark.parametrize("ram", [0, -1])
def test_a_machine_needs_memory(ram: int) -> None:
    with pytest.raises(UsageError, match=rf"ram is {ram} bytes; a machine needs some"):
        Hardware.simulate(ram=ram)


@pytest.mark.parametrize(
    ("usable", "margin"), [(4000 * MIB, 400 * MIB), (64 * GIB, GIB), (10 * GIB, GIB), (0, 0), (None, 0)]
)
def test_the_margin_is_a_tenth_and_at_most_1_gib(usable: int | None, margin: int) -> None:
    assert Pool(name="host", total_bytes=None, usable_bytes=usable, source="a test").margin_bytes == margin


def test_this_machine_is_found_with_its_memory_and_its_processor() -> None:
    machine = Hardware.detect()
    assert machine.host.total_bytes is None or machine.host.total_bytes > 64 * MIB
    if machine.host.usable_bytes is not None and machine.host.total_bytes is not None:
        assert 0 <= machine.host.usable_bytes <= machine.host.total_bytes
    assert machine.host.source
    assert machine.cpu_architecture
