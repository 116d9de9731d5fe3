"""The operating system's view and the engine's, joined."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sample_machines import build

from benchmarks.oracle import Oracle
from planner import Hardware
from planner.engine.find import Engine, parse_devices
from planner.hardware import Graphics
from planner.hardware.assemble import assemble
from planner.hardware.views import joined
from planner.units import GIB, MIB
from probes import probe_everything


def machine(name: str, folder: Path) -> Hardware:
    return assemble(probe_everything(build(name, folder)))


def views(hardware: Hardware, text: str) -> list[tuple[str | None, str | None, str]]:
    return [
        (view.seen.name if view.seen else None, view.graphics.name if view.graphics else None, view.explanation)
        for view in joined(hardware, parse_devices(text))
    ]


def test_a_card_is_joined_by_its_name_and_what_its_driver_takes_is_told(tmp_path: Path) -> None:
    text = "  CUDA0: NVIDIA GeForce RTX 4090 (24083 MiB, 22901 MiB free)"
    assert views(machine("rtx_4090", tmp_path), text) == [
        (
            "CUDA0",
            "NVIDIA GeForce RTX 4090",
            "403.0 MiB less: what the driver takes for a program that uses it.",
        )
    ]


def test_two_cards_are_joined_by_name_in_whatever_order(tmp_path: Path) -> None:
    hardware = machine("two_cards", tmp_path)
    text = "  CUDA0: NVIDIA GeForce RTX 3060 (12036 MiB, 11800 MiB free)\n"
    text += "  CUDA1: NVIDIA GeForce RTX 3090 (24125 MiB, 23306 MiB free)"
    assert [(name, card) for name, card, _ in views(hardware, text)] == [
        ("CUDA0", "NVIDIA GeForce RTX 3060"),
        ("CUDA1", "NVIDIA GeForce RTX 3090"),
    ]
    seen = hardware.with_accelerators(parse_devices(text))
    assert seen.pool_named("CUDA0").usable_bytes == 11800 * MIB
    assert seen.pool_named("CUDA1").label == "NVIDIA GeForce RTX 3090"


def test_where_a_card_sits_comes_before_its_name(tmp_path: Path) -> None:
    hardware = machine("two_cards", tmp_path)
    text = "  CUDA0: NVIDIA GeForce RTX 3090 (0000:08:00.0) (12288 MiB, 11800 MiB free)"
    assert views(hardware, text)[0][:2] == ("CUDA0", "NVIDIA GeForce RTX 3060")


def test_an_engine_without_a_back_end_for_a_card_leaves_it_out_of_plans(tmp_path: Path) -> None:
    hardware = machine("rx_7900_xtx", tmp_path)
    ((name, card, why),) = views(hardware, "Available devices:\n  (none)")
    assert (name, card) == (None, "AMD Radeon RX 7900 XT/7900 XTX")
    assert why == "This engine does not list it: a build for ROCm or Vulkan does, where it finds a driver."
    assert [pool.name for pool in hardware.with_accelerators(()).pools] == ["host"]


VULKAN_BESIDE_CARD = """\
  Vulkan0: Intel(R) UHD Graphics 630 (CFL GT2) (72144 MiB, 64930 MiB free)
  Vulkan1: Quadro T1000 (4342 MiB, 3815 MiB free)
"""


def test_shared_graphics_beside_a_card_are_used_only_where_they_are_named(tmp_path: Path) -> None:
    """llama.cpp#22368, whose total also counts a window of 256 MiB to the card's memory twice."""
    hardware = machine("uhd_beside_a_card", tmp_path)
    shared, card = views(hardware, VULKAN_BESIDE_CARD)
    assert shared == (
        "Vulkan0",
        "Intel UHD Graphics 630",
        "It has no memory of its own: beside a card it is used only where --device names it.",
    )
    assert card[2] == "Of the engine's total, 246.0 MiB are a window to the same memory, counted twice."
    seen = hardware.with_accelerators(parse_devices(VULKAN_BESIDE_CARD))
    assert [device.name for device in seen.accelerators] == ["Vulkan1"]
    assert [(device.name, device.pool, device.only_named) for device in seen.devices] == [
        ("Vulkan1", "Vulkan1", False),
        ("Vulkan0", "host", True),
        ("CPU", "host", False),
    ]
    assert seen.pool_named("Vulkan1").total_bytes == 4 * GIB


def test_a_card_that_two_backends_list_is_one_pool_and_used_once(tmp_path: Path) -> None:
    text = "  CUDA0: NVIDIA GeForce RTX 3090 (24125 MiB, 23306 MiB free)\n"
    text += "  CUDA1: NVIDIA GeForce RTX 3060 (12036 MiB, 11800 MiB free)\n"
    text += "  Vulkan0: NVIDIA GeForce RTX 3090 (24576 MiB, 23900 MiB free)\n"
    text += "  Vulkan1: NVIDIA GeForce RTX 3060 (12288 MiB, 11900 MiB free)\n"
    for hardware in (machine("two_cards", tmp_path), Hardware.simulate(ram=64 * GIB)):
        seen = hardware.with_accelerators(parse_devices(text))
        assert [pool.name for pool in seen.pools] == ["CUDA0", "CUDA1", "host"]
        assert [device.name for device in seen.accelerators] == ["CUDA0", "CUDA1"]
        assert [device.pool for device in seen.devices] == ["CUDA0", "CUDA1", "CUDA0", "CUDA1", "host"]
    assert views(machine("two_cards", tmp_path / "again"), text)[2][2].startswith("It is the same card as CUDA0")


def test_two_cards_of_one_kind_are_two(tmp_path: Path) -> None:
    text = "".join(f"  CUDA{index}: NVIDIA GeForce RTX 3090 (24125 MiB, 23306 MiB free)\n" for index in range(2))
    seen = Hardware.simulate(ram=64 * GIB).with_accelerators(parse_devices(text))
    assert [pool.name for pool in seen.pools] == ["CUDA0", "CUDA1", "host"]


def test_more_free_than_there_is_is_clamped_and_told() -> None:
    """llama.cpp#29277."""
    text = "  Vulkan0: Intel(R) Iris(R) Xe Graphics (37068 MiB, 47882 MiB free)"
    hardware = Hardware.simulate(ram=64 * GIB)
    assert views(hardware, text)[0][2].startswith("The engine says that more is free than there is")
    assert hardware.with_accelerators(parse_devices(text)).devices[0].cap_bytes == 37068 * MIB


def test_metals_free_memory_is_lowered_to_what_a_plan_may_use(tmp_path: Path) -> None:
    hardware = machine("m1_max", tmp_path)
    text = "  MTL0: Apple M1 Max (26000 MiB, 25999 MiB free)"
    assert "counts its own buffers alone" in views(hardware, text)[0][2]
    seen = hardware.with_accelerators(parse_devices(text))
    assert seen.devices[0].cap_bytes == 26000 * MIB - MIB - 2 * GIB


def test_a_device_that_no_probe_knows_has_memory_of_its_own() -> None:
    text = "  CANN0: Ascend310P3 (20480 MiB, 20000 MiB free)"
    hardware = Hardware.simulate(ram=64 * GIB)
    assert views(hardware, text) == [("CANN0", None, "The operating system has no probe for it.")]
    assert hardware.with_accelerators(parse_devices(text)).pool_named("CANN0").label == "Ascend310P3"


def test_what_the_network_reaches_comes_first_and_is_no_card_here(tmp_path: Path) -> None:
    text = "  CUDA0: NVIDIA GeForce RTX 4090 (24083 MiB, 22901 MiB free)\n"
    text += "  RPC0: 127.0.0.1:50052 (16000 MiB, 16000 MiB free)\n"
    hardware = machine("rtx_4090", tmp_path)
    seen = hardware.with_accelerators(parse_devices(text))
    assert [device.name for device in seen.accelerators] == ["RPC0", "CUDA0"]
    assert views(hardware, text)[1] == ("RPC0", None, "Another process's, over the network.")


def test_shared_graphics_are_used_with_the_first_back_end_and_beside_the_network(tmp_path: Path) -> None:
    text = "  ROCm0: AMD Radeon Graphics (98304 MiB, 97900 MiB free)\n"
    text += "  Vulkan0: AMD Radeon Graphics (RADV GFX1151) (102400 MiB, 102000 MiB free)\n"
    text += "  RPC0: 127.0.0.1:50052 (16000 MiB, 16000 MiB free)\n"
    seen = machine("strix_halo_4", tmp_path).with_accelerators(parse_devices(text))
    assert [device.name for device in seen.accelerators] == ["RPC0", "ROCm0"]
    assert [device.name for device in seen.devices if device.only_named] == ["Vulkan0"]


def test_joining_twice_changes_nothing(tmp_path: Path) -> None:
    listed = parse_devices("  Vulkan0: AMD Radeon Graphics (RADV GFX1151) (102400 MiB, 102000 MiB free)")
    once = machine("strix_halo_4", tmp_path).with_accelerators(listed)
    assert once.with_accelerators(listed) == once


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "intel", "other"])
def test_figures_that_the_system_does_not_tell_come_from_the_engine(vendor: str) -> None:
    unknown = Graphics(
        name="A card", vendor=vendor, pci=None, pool="x", shares_memory=False, total_bytes=None, usable_bytes=None
    )
    hardware = Hardware.simulate(ram=GIB)
    hardware = type(hardware)(pools=hardware.pools, devices=hardware.devices, graphics=(unknown,))
    text = "  Vulkan0: A card (8192 MiB, 8000 MiB free)"
    assert views(hardware, text)[0][2] == "What the operating system does not tell, the engine does."
    assert hardware.with_accelerators(parse_devices(text)).pools[0].usable_bytes == 8000 * MIB


# Real engines

LIST_DEVICES = """
import ctypes, sys
from benchmarks.oracle_child import add_servers, function, library
add_servers(sys.argv[1:])
pointer, size = ctypes.c_void_p, ctypes.c_size_t
count = function(library("ggml"), "ggml_backend_dev_count", size)
get = function(library("ggml"), "ggml_backend_dev_get", pointer, size)
base = library("ggml-base")
name = function(base, "ggml_backend_dev_name", ctypes.c_char_p, pointer)
description = function(base, "ggml_backend_dev_description", ctypes.c_char_p, pointer)
kind = function(base, "ggml_backend_dev_type", ctypes.c_int, pointer)
memory = function(base, "ggml_backend_dev_memory", None, pointer, ctypes.POINTER(size), ctypes.POINTER(size))
print("Available devices:")
for device in map(get, range(count())):
    free, total = size(), size()
    memory(device, free, total)
    if kind(device) != 0:
        figures = f"({total.value >> 20} MiB, {free.value >> 20} MiB free)"
        print(f"  {name(device).decode()}: {description(device).decode()} {figures}")
"""
"""What `--list-devices` prints (`common/arg.cpp: common_print_available_devices`), for the library."""


@pytest.mark.engine
def test_a_real_engine_with_two_devices_over_the_network() -> None:
    with Oracle(devices=2) as oracle:
        endpoints = [name.removeprefix("RPC0[").removesuffix("]") for name in oracle.device_names]
        command = [sys.executable, "-c", LIST_DEVICES, *endpoints]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    devices = parse_devices(listed)
    assert len(devices) == 2
    here = Hardware.detect()
    seen = here.with_accelerators(devices)
    assert [device.name for device in seen.accelerators] == [device.name for device in devices]
    assert [pool.name for pool in seen.pools] == [*(device.name for device in devices), "host"]
    # Each is a processor's, which counts all memory of the machine as its own and free.
    for device in devices:
        assert seen.pool_named(device.name).total_bytes == (here.memory.total_bytes or 0) // MIB * MIB
        assert {view.explanation for view in joined(here, devices) if view.seen == device} == {
            "Another process's, over the network."
        }


@pytest.mark.engine
def test_the_embedded_engine_lists_what_it_can_use_here(engine: Engine) -> None:
    here = Hardware.detect()
    seen = here.with_accelerators(engine.devices)
    assert len(seen.accelerators) <= len(engine.devices)
    assert {view.seen for view in joined(here, engine.devices) if view.seen} == set(engine.devices)
