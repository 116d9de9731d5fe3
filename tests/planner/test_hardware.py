from __future__ import annotations

import pytest

from planner import Hardware
from planner.engine.find import EngineDevice
from planner.errors import UsageError
from planner.hardware import Pool, kind_of_device
from planner.units import GIB, MIB


def test_a_simulated_machine_has_all_its_memory_free_and_one_device() -> None:
    machine = Hardware.simulate(ram=16 * GIB)
    assert (machine.host.total_bytes, machine.host.usable_bytes) == (16 * GIB, 16 * GIB)
    assert [(device.name, device.pool) for device in machine.devices] == [("CPU", "host")]
    assert "avx2" in machine.cpu_features


@pytest.mark.parametrize(("ram", "vram"), [(0, []), (-1, []), (GIB, [0]), (GIB, [GIB, -1])])
def test_a_machine_needs_memory(ram: int, vram: list[int]) -> None:
    with pytest.raises(UsageError, match=r"A simulated machine needs RAM, and each of its cards needs VRAM"):
        Hardware.simulate(ram=ram, vram=vram)


def test_simulated_cards_come_before_the_processor_and_have_memory_of_their_own() -> None:
    machine = Hardware.simulate(ram=16 * GIB, vram=[24 * GIB, 12 * GIB], max_allocation=4 * GIB)
    assert [(device.name, device.pool) for device in machine.devices] == [
        ("CUDA0", "CUDA0"),
        ("CUDA1", "CUDA1"),
        ("CPU", "host"),
    ]
    assert [machine.pool_named(device.pool).usable_bytes for device in machine.devices] == [
        24 * GIB,
        12 * GIB,
        16 * GIB,
    ]
    assert [device.max_allocation_bytes for device in machine.devices] == [4 * GIB, 4 * GIB, None]
    assert [device.name for device in machine.accelerators] == ["CUDA0", "CUDA1"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("CPU", "cpu"),
        ("CUDA0", "cuda"),
        ("ROCm1", "rocm"),
        ("MTL0", "metal"),
        ("Metal", "metal"),
        ("Vulkan0", "vulkan"),
        ("SYCL0", "sycl"),
        ("RPC0[127.0.0.1:50052]", "rpc"),
        ("CANN0", "other"),
    ],
)
def test_a_back_end_is_known_by_the_name_of_its_device(name: str, kind: str) -> None:
    assert kind_of_device(name) == kind


def listed(name: str, total: int, free: int, description: str = "a card") -> EngineDevice:
    return EngineDevice(name=name, description=description, total_bytes=total, free_bytes=free)


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("MTL0", "Apple M1 Max"),
        ("Vulkan0", "Intel(R) UHD Graphics 630 (CFL GT2)"),
        ("Vulkan0", "AMD Radeon Graphics (RADV GFX1151)"),
        ("Vulkan0", "AMD Radeon 780M Graphics (RADV PHOENIX)"),
        ("CUDA0", "NVIDIA GB10"),
        ("CUDA0", "Orin (nvgpu)"),
        ("Vulkan0", "graphics that report all of the memory as their own"),
    ],
)
def test_graphics_that_share_the_memory_are_not_counted_beside_it(name: str, description: str) -> None:
    total = 15 * GIB if description.startswith("graphics") else 8 * GIB
    machine = Hardware.simulate(ram=16 * GIB).with_accelerators([listed(name, total, 6 * GIB, description)])
    assert [pool.name for pool in machine.pools] == ["host"]
    assert machine.accelerators[0].cap_bytes == 6 * GIB


@pytest.mark.parametrize("description", ["NVIDIA GeForce RTX 3090", "AMD Radeon RX 7900 XTX", "Intel(R) Arc(TM) B580"])
def test_cards_have_memory_of_their_own(description: str) -> None:
    machine = Hardware.simulate(ram=64 * GIB).with_accelerators([listed("Vulkan0", 12 * GIB, 11 * GIB, description)])
    assert [pool.name for pool in machine.pools] == ["Vulkan0", "host"]


def test_devices_that_an_engine_lists_come_first_and_metal_draws_on_the_host() -> None:
    machine = Hardware.simulate(ram=16 * GIB).with_accelerators(
        [listed("Vulkan0", 8 * GIB, 6 * GIB), listed("MTL0", 16 * GIB, 12 * GIB), listed("CUDA0", 8 * GIB, 9 * GIB)]
    )
    assert [(device.name, device.pool) for device in machine.devices] == [
        ("Vulkan0", "Vulkan0"),
        ("MTL0", "host"),
        ("CUDA0", "CUDA0"),
        ("CPU", "host"),
    ]
    assert machine.devices_of(machine.host) == {"MTL0", "CPU"}
    assert [(pool.name, pool.total_bytes, pool.usable_bytes) for pool in machine.pools] == [
        ("Vulkan0", 8 * GIB, 6 * GIB),
        ("CUDA0", 8 * GIB, 8 * GIB),  # no more is free than there is
        ("host", 16 * GIB, 16 * GIB),
    ]


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
