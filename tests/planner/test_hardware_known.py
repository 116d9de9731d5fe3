from __future__ import annotations

import pytest

from planner import Hardware
from planner.errors import UsageError
from planner.hardware.known import known_names, named_machine
from planner.units import GIB, MIB

HERE = Hardware.simulate(ram=32 * GIB)


@pytest.mark.parametrize(
    "name", ["rtx 3060", "RTX 3060", "NVIDIA GeForce RTX 3060", "geforce rtx 3060 12GB", "rtx  3060 12"]
)
def test_a_card_stands_in_a_machine_like_this_one(name: str) -> None:
    machine = named_machine(name, HERE)
    assert [(pool.total_bytes, pool.usable_bytes) for pool in machine.pools] == [
        (12 * GIB, 12 * GIB - 512 * MIB),
        (32 * GIB, 32 * GIB),
    ]
    assert (machine.pools[0].bandwidth_gb_per_s, machine.devices[0].name) == (360, "CUDA0")
    assert named_machine(name, HERE, 8 * GIB).host.usable_bytes == 8 * GIB


def test_several_cards() -> None:
    machine = named_machine("2x rtx 3090, rx 7600", HERE)
    assert [device.name for device in machine.accelerators] == ["CUDA0", "CUDA1", "Vulkan0"]


@pytest.mark.parametrize(
    ("name", "total", "usable", "device", "cap"),
    [
        ("n100", 16, 14, None, None),
        ("n100 8", 8, 7, None, None),
        ("mac mini 16", 16, 14, "MTL0", 16 * GIB * 2 // 3 - 2 * GIB),
        ("Mac mini M4 Pro 64 GB", 64, 60, "MTL0", 46 * GIB),
        ("strix halo", 128, 124, "Vulkan0", None),
        ("dgx spark", 128, 124, "CUDA0", None),
    ],
)
def test_a_box_has_one_memory(name: str, total: int, usable: int, device: str | None, cap: int | None) -> None:
    machine = named_machine(name, HERE)
    assert [(pool.total_bytes, pool.usable_bytes) for pool in machine.pools] == [(total * GIB, usable * GIB)]
    assert [(found.name, found.cap_bytes) for found in machine.accelerators] == ([(device, cap)] if device else [])


def test_old_processors_have_no_avx() -> None:
    assert "avx" not in named_machine("n5105", HERE).cpu_features
    assert "avx2" in named_machine("n100", HERE).cpu_features
    assert named_machine("mac mini", HERE).cpu_architecture == "aarch64"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rtx 3065", "is no machine known here (near: rtx 30"),
        ("toaster", "'toaster' is no machine known here."),
        ("mac mini 0", "no machine known"),
        ("", "--machine needs a name"),
        ("n100, rtx 3060", "n100 is a whole machine"),
        ("2x n100", "n100 is a whole machine"),
    ],
)
def test_what_is_not_known_says_so(name: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        named_machine(name, HERE)
    assert said in str(error.value)


def test_a_box_takes_no_other_ram() -> None:
    with pytest.raises(UsageError, match="Write it behind the name: 'n100 32'"):
        named_machine("n100", HERE, 32 * GIB)


@pytest.mark.parametrize("name", known_names())
def test_every_name_makes_a_machine_with_memory_and_its_speed(name: str) -> None:
    machine = named_machine(name, HERE)
    pool = machine.pools[0]
    assert pool.total_bytes is not None
    assert pool.usable_bytes is not None
    assert 0 < pool.usable_bytes < pool.total_bytes
    assert pool.bandwidth_gb_per_s is not None
    assert 5 < pool.bandwidth_gb_per_s < 2000
    assert "table of machines" in pool.source
