"""The machines that people own: their pools, usable bytes, devices, sources and warnings, live and from a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sample_machines import MACHINES, build

from planner import Hardware
from planner.engine.find import parse_devices
from planner.hardware.assemble import assemble
from planner.units import GIB, KIB, MIB
from probes import probe_everything


def seen(name: str, folder: Path) -> Hardware:
    """The machine, after it has gone through a report and back, which may change nothing but private names."""
    machine = build(name, folder)
    live = assemble(probe_everything(machine))
    document = json.loads(json.dumps(machine.report.to_document()))
    replayed = Hardware.of(document)
    assert replayed.devices == live.devices
    assert [(pool.name, pool.total_bytes, pool.usable_bytes) for pool in replayed.pools] == [
        (pool.name, pool.total_bytes, pool.usable_bytes) for pool in live.pools
    ]
    assert (replayed.warnings, replayed.system, replayed.cpu_features) == (
        live.warnings,
        live.system,
        live.cpu_features,
    )
    return live


def pools(machine: Hardware) -> list[tuple[str, int | None, int | None]]:
    return [(pool.name, pool.total_bytes, pool.usable_bytes) for pool in machine.pools]


def devices(machine: Hardware) -> list[tuple[str, str, int | None]]:
    return [(device.name, device.pool, device.cap_bytes) for device in machine.devices]


CPU = ("CPU", "host", None)


def test_rtx_4090(tmp_path: Path) -> None:
    machine = seen("rtx_4090", tmp_path)
    assert pools(machine) == [
        ("CUDA0", 25757220864, 24436015104),
        ("host", 65769856 * KIB, 58112340 * KIB),
    ]
    assert devices(machine) == [("CUDA0", "CUDA0", None), CPU]
    card = machine.pool_named("CUDA0")
    assert card.source == (
        "total_bytes: nvmlDeviceGetMemoryInfo, version 2; free_bytes: nvmlDeviceGetMemoryInfo, version 2"
    )
    assert [(holding.name, holding.size_bytes, holding.is_desktop) for holding in card.held] == [
        ("gnome-shell", 400 * MIB, True),
        ("Xorg", 301 * MIB, True),
        ("my-own-game", 100 * MIB, False),
    ]
    assert (machine.graphics[0].pci, card.confidence, machine.warnings) == ("0000:01:00.0", "read", ())


def test_two_mixed_cards_of_which_one_driver_knows_version_1_alone(tmp_path: Path) -> None:
    machine = seen("two_cards", tmp_path)
    assert pools(machine) == [
        ("CUDA0", 25769803776, 25769803776 - 305 * MIB),
        ("CUDA1", 12884901888, 12884901888 - 210 * MIB),
        ("host", 32768000 * KIB, 30000000 * KIB),
    ]
    assert [device.name for device in machine.accelerators] == ["CUDA0", "CUDA1"]
    assert "version 1" in machine.pool_named("CUDA1").source


def test_a_mig_slice_has_its_own_memory_and_only_the_first_one_is_a_device(tmp_path: Path) -> None:
    machine = seen("mig_slices", tmp_path)
    assert pools(machine)[0] == ("CUDA0", 16 * GIB, 16 * GIB - 16 * MIB)
    assert devices(machine) == [("CUDA0", "CUDA0", None), CPU]
    first, second = machine.graphics
    assert (first.name, first.held) == ("NVIDIA H200 MIG 1g.18gb", ())
    assert (second.device, second.usable_bytes) == (None, 15 * GIB - 16 * MIB)
    assert [(holding.name, holding.size_bytes) for holding in second.held] == [("llama-server", GIB)]
    assert "one MIG slice" in second.note


def test_gb10_is_one_memory(tmp_path: Path) -> None:
    machine = seen("gb10", tmp_path)
    assert pools(machine) == [("host", 127600748 * KIB, 118566368 * KIB)]
    assert devices(machine) == [("CUDA0", "host", None), CPU]
    assert machine.graphics[0].source == "shares_memory: NVML name NVIDIA GB10, memory NotSupported"
    assert machine.cpu_architecture == "aarch64"


def test_gb10_with_huge_pages_is_warned_of(tmp_path: Path) -> None:
    from fake_machine import FakeMachine
    from sample_machines import gb10, meminfo

    machine = gb10(FakeMachine(tmp_path))
    pages = "HugePages_Total:     512\nHugePages_Free:      100\nHugepagesize:       2048 kB\n"
    FakeMachine(tmp_path).write("/proc/meminfo", meminfo(127600748, 118566368, pages))
    warnings = assemble(probe_everything(machine)).warnings
    assert any("their free part, 200.0 MiB: set vm.nr_hugepages=0" in warning for warning in warnings)


def test_jetson_orin_is_one_memory(tmp_path: Path) -> None:
    machine = seen("jetson_orin", tmp_path)
    assert pools(machine) == [("host", 7802168 * KIB, 6100000 * KIB)]
    assert devices(machine) == [("CUDA0", "host", None), CPU]
    assert machine.board == "NVIDIA Jetson Orin Nano Developer Kit"


def test_rx_7900_xtx(tmp_path: Path) -> None:
    machine = seen("rx_7900_xtx", tmp_path)
    assert pools(machine) == [
        ("Vulkan0", 25753026560, 25753026560 - 412090368),
        ("host", 65769856 * KIB, 60000000 * KIB),
    ]
    card = machine.graphics[0]
    assert (card.name, card.pci) == ("AMD Radeon RX 7900 XT/7900 XTX", "0000:03:00.0")
    assert [(holding.name, holding.size_bytes) for holding in card.held] == [("kwin_wayland", 204800 * KIB)]
    assert "mem_info_vram_used" in card.source


def test_strix_halo_with_a_small_carve_out_is_one_memory(tmp_path: Path) -> None:
    machine = seen("strix_halo_4", tmp_path)
    total, usable = 127926272 * KIB, 127926272 * KIB - 6 * GIB
    free_aside, free_shared = 4 * GIB - 256 * MIB, 96 * GIB - 64 * MIB
    assert pools(machine) == [("host", total + 4 * GIB, usable + free_aside)]
    assert devices(machine) == [("Vulkan0", "host", free_aside + free_shared), ("CPU", "host", usable)]
    assert (machine.memory.total_bytes, machine.memory.usable_bytes) == (total, usable)
    settings = " ".join(limit.setting for limit in machine.limits)
    assert "ttm.pages_limit" in settings
    assert "BIOS" in settings


def test_rocm_leaves_a_small_carve_out_alone(tmp_path: Path) -> None:
    machine = seen("strix_halo_4", tmp_path)
    listed = parse_devices("  ROCm0: AMD Radeon Graphics (98304 MiB, 97900 MiB free)")
    with_rocm = machine.with_accelerators(listed)
    assert pools(with_rocm) == [("host", machine.memory.total_bytes, machine.memory.usable_bytes)]
    assert devices(with_rocm) == [("ROCm0", "host", 97900 * MIB), CPU]


def test_strix_halo_with_a_large_carve_out_is_recognised_and_warned_of(tmp_path: Path) -> None:
    machine = seen("strix_halo_96", tmp_path)
    total, usable = 32455124 * KIB, 32455124 * KIB - 6 * GIB
    free_aside = 96 * GIB - 256 * MIB
    assert pools(machine) == [("host", total + 96 * GIB, usable + free_aside)]
    assert devices(machine) == [
        ("Vulkan0", "host", free_aside + 16616943616 - 64 * MIB),
        ("CPU", "host", usable),
    ]
    assert any("96.0 GiB belong to graphics alone" in warning for warning in machine.warnings)
    listed = parse_devices("  ROCm0: AMD Radeon Graphics (98304 MiB, 98048 MiB free)")
    assert devices(machine.with_accelerators(listed)) == [("ROCm0", "host", 98048 * MIB), ("CPU", "host", usable)]


def test_without_a_device_for_it_a_carve_out_is_no_memory(tmp_path: Path) -> None:
    machine = seen("strix_halo_96", tmp_path).with_accelerators(())
    assert pools(machine) == [("host", 32455124 * KIB, 32455124 * KIB - 6 * GIB)]
    assert devices(machine) == [CPU]


def test_780m_laptop(tmp_path: Path) -> None:
    machine = seen("radeon_780m", tmp_path)
    assert pools(machine) == [("host", 31457280 * KIB + 536870912, 24000000 * KIB + 536870912 - 120 * MIB)]
    assert devices(machine) == [
        ("Vulkan0", "host", 536870912 - 120 * MIB + 16106127360 - 80 * MIB),
        ("CPU", "host", 24000000 * KIB),
    ]


def test_arc_b580_counts_what_processes_that_can_be_seen_hold(tmp_path: Path) -> None:
    machine = seen("arc_b580", tmp_path)
    assert pools(machine)[0] == ("Vulkan0", 12884901888, 12884901888 - 23992 * KIB)
    card = machine.pool_named("Vulkan0")
    assert (card.confidence, card.held[0].name) == ("low", "llama-server")
    assert any("other users' programs" in warning for warning in machine.warnings)


def test_intel_graphics_beside_a_card_are_left_alone(tmp_path: Path) -> None:
    machine = seen("uhd_beside_a_card", tmp_path)
    assert pools(machine) == [
        ("CUDA0", 4294967296, 4294967296 - 295 * MIB),
        ("host", 74000000 * KIB, 66000000 * KIB),
    ]
    assert [(graphics.name, graphics.device) for graphics in machine.graphics] == [
        ("Quadro T1000", "CUDA0"),
        ("Intel UHD Graphics 630", None),
    ]


def test_m1_max_stays_below_metals_working_set(tmp_path: Path) -> None:
    machine = seen("m1_max", tmp_path)
    assert pools(machine) == [("host", 32 * GIB, 20 * GIB)]
    assert devices(machine) == [("MTL0", "host", 26000 * MIB - MIB - 2 * GIB), CPU]
    assert machine.devices[0].max_allocation_bytes == 20 * GIB
    assert machine.host.pressure_bytes == 26000 * MIB - 2 * GIB
    assert machine.graphics[0].source == "shared_total_bytes: Metal recommendedMaxWorkingSetSize"
    assert machine.limits[0].what.endswith("as iogpu.wired_limit_mb says.")


def test_m3_without_metals_answer_is_estimated(tmp_path: Path) -> None:
    machine = seen("m3_16", tmp_path)
    assert pools(machine) == [("host", 16 * GIB, 6 * GIB)]
    working_set = 16 * GIB * 2 // 3
    assert devices(machine) == [("MTL0", "host", working_set - 2 * GIB), CPU]
    assert machine.host.pressure_bytes == working_set - 2 * GIB
    assert machine.graphics[0].confidence == "estimated"
    assert machine.graphics[0].source.startswith("shared_total_bytes: estimated")
    assert "iogpu.wired_limit_mb=12288" in machine.limits[0].setting


def test_n5105_is_told_that_it_has_no_avx(tmp_path: Path) -> None:
    machine = seen("n5105_nas", tmp_path)
    assert pools(machine) == [("host", 16173220 * KIB, 13800000 * KIB)]
    assert devices(machine) == [CPU]
    assert machine.graphics[0].name == "Intel UHD Graphics (Jasper Lake)"
    assert any("no AVX. The llama-server that comes with planner" in warning for warning in machine.warnings)


def test_n100_computes_on_its_processor(tmp_path: Path) -> None:
    machine = seen("n100_nas", tmp_path)
    assert (devices(machine), machine.warnings) == ([CPU], ())
    assert "avx_vnni" in machine.cpu_features
    # An engine that lists the graphics uses them, since llama.cpp would: they draw on the same memory.
    listed = parse_devices("  Vulkan0: Intel(R) UHD Graphics (ADL-N) (11800 MiB, 11000 MiB free)")
    with_vulkan = machine.with_accelerators(listed)
    assert devices(with_vulkan) == [("Vulkan0", "host", 11000 * MIB), CPU]
    assert pools(with_vulkan) == pools(machine)


def test_docker_limit_without_its_page_cache(tmp_path: Path) -> None:
    machine = seen("docker", tmp_path)
    assert pools(machine) == [("host", 65769856 * KIB, 4 * GIB - 950 * MIB)]
    assert machine.system == "Linux, in a Docker container"
    (limit,) = machine.limits
    assert (limit.limit_bytes, limit.binds) == (4 * GIB, True)
    assert limit.setting.startswith("docker update --memory")
    assert any("--fit does not see the container's limit" in warning for warning in machine.warnings)


def test_lxc_shows_its_own_memory_and_not_the_hosts_cache(tmp_path: Path) -> None:
    machine = seen("lxc", tmp_path)
    assert pools(machine) == [("host", 8388608 * KIB, 7000000 * KIB)]
    assert machine.system == "Linux, in an LXC container"
    assert any("pct set ID --memory" in limit.setting for limit in machine.limits)


def test_the_tightest_of_nested_groups_binds(tmp_path: Path) -> None:
    machine = seen("nested_groups", tmp_path)
    assert pools(machine) == [("host", 32768000 * KIB, 2 * GIB)]
    assert [(limit.limit_bytes, limit.binds) for limit in machine.limits] == [(12 * GIB, False), (8 * GIB, True)]


def test_version_1_limit(tmp_path: Path) -> None:
    machine = seen("version_1", tmp_path)
    assert pools(machine) == [("host", 16173220 * KIB, 1 * GIB + 500 * MIB)]
    assert "/sys/fs/cgroup/memory/memory.limit_in_bytes" in machine.host.source


def test_zfs_gives_up_most_of_its_cache(tmp_path: Path) -> None:
    machine = seen("zfs_nas", tmp_path)
    usable = 9000000 * KIB + int((3987654321 - 519094272) * 0.8)
    assert pools(machine) == [("host", 16173220 * KIB, usable)]
    assert machine.host.confidence == "estimated"
    assert any("four fifths" in warning for warning in machine.warnings)
    assert any("zfs_arc_max" in limit.setting for limit in machine.limits)


def test_wsl2_keeps_a_margin(tmp_path: Path) -> None:
    machine = seen("wsl2", tmp_path)
    assert pools(machine)[0] == ("CUDA0", 12878610432, 12878610432 - 1200 * MIB - 2 * GIB)
    card = machine.pool_named("CUDA0")
    assert (card.confidence, card.held[0].name, card.held[0].size_bytes) == ("low", None, None)
    # Also where the engine says that more is free.
    listed = parse_devices("  CUDA0: NVIDIA GeForce RTX 4070 (12281 MiB, 11000 MiB free)")
    assert pools(machine.with_accelerators(listed))[0] == (
        "CUDA0",
        12281 * MIB,
        12878610432 - 1200 * MIB - 2 * GIB,
    )
    assert machine.system == "WSL2"


def test_huge_pages_are_no_memory(tmp_path: Path) -> None:
    machine = seen("hugepages", tmp_path)
    assert pools(machine) == [("host", 16173220 * KIB, 5000000 * KIB)]
    assert machine.limits[0].limit_bytes == 8 * GIB


def test_a_virtual_machine_that_hides_its_processor(tmp_path: Path) -> None:
    machine = seen("virtual_machine", tmp_path)
    assert machine.system == "Linux, in a virtual machine"
    assert any("set its CPU type to host" in warning for warning in machine.warnings)


def test_windows_adapters_are_those_that_nvml_does_not_tell(tmp_path: Path) -> None:
    machine = seen("windows_radeon", tmp_path)
    assert pools(machine) == [("Vulkan0", 17163091968, 17163091968), ("host", 34290000000, 20000000000)]
    assert [graphics.name for graphics in machine.graphics] == ["AMD Radeon RX 6800", "AMD Radeon(TM) Graphics"]


@pytest.mark.parametrize("name", MACHINES)
def test_no_memory_is_counted_twice(name: str, tmp_path: Path) -> None:
    """Every pool is one card's or the host's, each once, and never more usable than it is large."""
    machine = seen(name, tmp_path)
    names = [pool.name for pool in machine.pools]
    assert len(names) == len(set(names))
    assert {device.pool for device in machine.devices} == set(names)
    for pool in machine.pools:
        assert pool.total_bytes is not None
        assert pool.usable_bytes is not None
        assert 0 <= pool.usable_bytes <= pool.total_bytes
        assert pool.source
