"""What drivers answer in odd cases, one maker after the other."""

from __future__ import annotations

import pytest
from fake_machine import GIB, MIB, FakeMachine
from fake_nvml import (
    FakeCard,
    FakeNvml,
    FakeProcess,
    NVMLError_LibraryNotFound,
    NVMLError_NotSupported,
    NVMLError_Unknown,
    memory,
)
from sample_machines import card, fdinfo, linux

from probes import Clients, Machine, probe_everything
from probes.amd import probe_amd
from probes.apple import probe_apple, working_set_rule
from probes.drm import fdinfo_regions
from probes.intel import probe_intel
from probes.nvidia import probe_nvidia, read_nvml

SIZES = memory(8 * GIB, 100 * MIB, 0)


def nvidia(machine: FakeMachine, *cards: FakeCard, error: Exception | None = None) -> Machine:
    return Machine(machine.root, system="Linux", clients=Clients(nvml=FakeNvml(cards, error)))


# NVIDIA


def test_without_a_driver_nvml_is_not_even_asked(machine: FakeMachine) -> None:
    assert probe_nvidia(Machine(machine.root, system="Linux")) == ((), ())


def test_the_real_library_without_a_driver_is_a_warning(machine: FakeMachine) -> None:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        pass
    else:
        pytest.skip("this machine has NVIDIA's driver")
    machine.write("/dev/nvidiactl", "")
    gpus, warnings = probe_nvidia(Machine(machine.root, system="Linux"))
    assert gpus == ()
    assert warnings[0].startswith("nvml: ")


def test_a_library_that_does_not_start_is_a_warning(machine: FakeMachine) -> None:
    gpus, warnings = probe_nvidia(nvidia(machine, error=NVMLError_LibraryNotFound("NVML Shared Library Not Found")))
    assert (gpus, warnings) == ((), ("nvml: NVML Shared Library Not Found",))


def test_a_lost_card_costs_only_itself(machine: FakeMachine) -> None:
    lost = FakeCard(name="NVIDIA GeForce RTX 3090", pci="0", memory=SIZES, is_lost=True)
    sound = FakeCard(name="NVIDIA GeForce RTX 3060", pci="00000000:08:00.0", memory=SIZES)
    gpus, warnings = probe_nvidia(nvidia(machine, lost, sound))
    assert [gpu.name for gpu in gpus] == ["NVIDIA GeForce RTX 3060"]
    assert warnings == ("NVML lists a processor 0 and cannot tell of it: GpuIsLost.",)


def test_not_supported_alone_makes_no_card_one_that_shares_memory(machine: FakeMachine) -> None:
    """A MIG parent, a lost card and a missing permission answer so, too (gpustat#179)."""
    odd = FakeCard(name="NVIDIA A100-SXM4-40GB", pci="0", memory=NVMLError_NotSupported())
    (gpu,), _ = probe_nvidia(nvidia(machine, odd))
    assert (gpu.shares_memory, gpu.total_bytes) == (False, None)
    assert gpu.warnings == ("How much memory NVIDIA A100-SXM4-40GB has is not known: NVML says NotSupported.",)


def test_gb10_with_a_driver_that_tells_figures_shares_memory_all_the_same(machine: FakeMachine) -> None:
    odd = FakeCard(name="NVIDIA GB10", pci="0000000F:01:00.0", memory=memory(128501256192, 0, 6910320640))
    (gpu,), _ = probe_nvidia(nvidia(machine, odd))
    assert gpu.shares_memory


def test_a_card_whose_memory_is_an_unknown_error(machine: FakeMachine) -> None:
    odd = FakeCard(name="NVIDIA GeForce GTX 970", pci="0", memory=NVMLError_Unknown())
    (gpu,), _ = probe_nvidia(nvidia(machine, odd))
    assert (gpu.total_bytes, gpu.free_bytes) == (None, None)


def test_a_program_that_computes_and_draws_counts_once(machine: FakeMachine) -> None:
    machine.write("/proc/5/comm", "blender\n")
    process = FakeProcess(pid=5, usedGpuMemory=GIB)
    both = FakeCard(name="NVIDIA GeForce RTX 3060", pci="0", memory=SIZES, compute=[process], graphics=[process])
    (gpu,), _ = probe_nvidia(nvidia(machine, both))
    assert [(holder.name, holder.size_bytes) for holder in gpu.holders] == [("blender", GIB)]


def test_nvml_is_closed_again(machine: FakeMachine) -> None:
    nvml = FakeNvml([FakeCard(name="NVIDIA GeForce RTX 3060", pci="0", memory=SIZES)])
    read_nvml(Machine(machine.root, clients=Clients(nvml=nvml)))
    assert not nvml.is_open


def test_a_card_without_a_driver_that_answers_is_told(machine: FakeMachine) -> None:
    here = linux(machine, total_kib=16000000, available_kib=15000000)
    card(machine, 0, "0000:01:00.0", "10de", "2684", "nouveau", {})
    assert any("install NVIDIA's own driver" in warning for warning in probe_everything(here).warnings)
    machine.write("/.dockerenv", "")
    here = linux(machine, total_kib=16000000, available_kib=15000000)
    assert any("docker run --gpus all" in warning for warning in probe_everything(here).warnings)


def test_a_jetson_without_nvml_is_known_by_its_board(machine: FakeMachine) -> None:
    here = linux(machine, total_kib=7802168, available_kib=6100000, architecture="aarch64")
    machine.write("/dev/nvhost-gpu", "")
    machine.write("/proc/device-tree/model", "NVIDIA Jetson Xavier NX Developer Kit\0")
    (gpu,), _ = probe_nvidia(Machine(here.root, system="Linux", clients=Clients(nvml=FakeNvml(()))))
    assert (gpu.name, gpu.shares_memory) == ("NVIDIA Jetson Xavier NX Developer Kit", True)


# AMD


@pytest.mark.parametrize(
    ("device", "vram", "gtt", "more", "shares"),
    [
        ("744c", 24 * GIB, 32 * GIB, {"mem_info_vram_vendor": "hynix"}, False),
        ("7480", 8 * GIB, 16 * GIB, {"board_info": "type : cem"}, False),
        ("1586", 96 * GIB, 15 * GIB, {}, True),
        ("ffff", 512 * MIB, 15 * GIB, {}, True),
        ("ffff", 4 * GIB, 15 * GIB, {}, False),
        ("ffff", 16 * GIB, 8 * GIB, {}, False),
        ("15bf", 4 * GIB, 4 * GIB, {"board_info": "type : unknown"}, True),
    ],
)
def test_graphics_that_share_memory_are_told_from_cards(
    machine: FakeMachine, device: str, vram: int, gtt: int, more: dict[str, object], shares: bool
) -> None:
    sizes = {"mem_info_vram_total": vram, "mem_info_vram_used": 0, "mem_info_gtt_total": gtt, "mem_info_gtt_used": 0}
    card(machine, 0, "0000:03:00.0", "1002", device, "amdgpu", {**sizes, **more})
    (gpu,), _ = probe_amd(machine.root)
    assert gpu.shares_memory is shares


def test_a_processor_with_built_in_graphics_is_known_by_its_compute_node(machine: FakeMachine) -> None:
    sizes = {"mem_info_vram_total": 64 * GIB, "mem_info_vram_used": 0, "drm/renderD129/dev": "226:129"}
    card(machine, 0, "0000:c5:00.0", "1002", "ffff", "amdgpu", sizes)
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    machine.write(f"{nodes}/1/properties", "simd_count 80\ndrm_render_minor 129\ngfx_target_version 110501\n")
    (gpu,), _ = probe_amd(machine.root)
    assert gpu.shares_memory
    assert "KFD gfx_target_version 110501" in gpu.sources[-1]


def test_more_in_use_than_there_is_leaves_nothing_and_is_told(machine: FakeMachine) -> None:
    sizes = {"mem_info_vram_total": 8 * GIB, "mem_info_vram_used": 9 * GIB, "mem_info_vram_vendor": "samsung"}
    card(machine, 0, "0000:03:00.0", "1002", "7480", "amdgpu", sizes)
    (gpu,), warnings = probe_amd(machine.root)
    assert gpu.free_bytes == 0
    assert any("is above its total" in warning for warning in warnings)


def test_a_card_without_its_driver_has_unknown_memory(machine: FakeMachine) -> None:
    card(machine, 0, "0000:03:00.0", "1002", "744c", "vfio-pci", {})
    gpus, warnings = probe_amd(machine.root)
    assert gpus == ()
    assert "so its memory is not known (driver vfio-pci)" in warnings[0]


def test_names_come_from_the_systems_list_of_devices(machine: FakeMachine) -> None:
    listing = (
        "1001  Kolter Electronic\n\t744c  Not this one\n1002  Advanced Micro Devices, Inc. [AMD/ATI]\n"
        "\t744c  Navi 31 [Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M]\n\t\t1002 0e3b  Radeon RX 7900 GRE\n"
    )
    machine.write("/usr/share/misc/pci.ids", listing)
    card(machine, 0, "0000:03:00.0", "1002", "744c", "amdgpu", {"mem_info_vram_total": 24 * GIB})
    here = Machine(machine.root, system="Linux")
    (gpu,), _ = probe_amd(here)
    assert gpu.name == "AMD Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M"
    assert "Kolter" not in here.report.files["/usr/share/misc/pci.ids"]


# Intel


def test_the_tiles_of_a_card_add_up(machine: FakeMachine) -> None:
    tiles = {f"tile{index}/physical_vram_size_bytes": 8 * GIB for index in range(2)}
    card(machine, 0, "0000:03:00.0", "8086", "0bd5", "xe", tiles)
    (gpu,), _ = probe_intel(machine.root)
    assert (gpu.total_bytes, gpu.shares_memory, gpu.name) == (16 * GIB, False, "Intel graphics 8086:0bd5")


def test_i915_tells_a_cards_memory_beside_the_device(machine: FakeMachine) -> None:
    card(machine, 0, "0000:03:00.0", "8086", "56a0", "i915", {})
    machine.write("/sys/class/drm/card0/lmem_total_bytes", f"{16 * GIB}\n")
    (gpu,), _ = probe_intel(machine.root)
    assert (gpu.total_bytes, gpu.name) == (16 * GIB, "Intel Arc A770")


# fdinfo

AMD_OLD = "drm-driver:\tamdgpu\ndrm-memory-vram:\t2068 KiB\ndrm-memory-gtt: \t8192 KiB\ndrm-memory-cpu: \t0 KiB\n"
AMD_NEW = (
    f"{AMD_OLD}drm-total-vram:\t6291456 KiB\ndrm-resident-vram:\t6291456 KiB\ndrm-resident-gtt:\t262144 KiB\n"
    "amd-evicted-vram:\t0 KiB\ndrm-engine-gfx:\t107322799 ns\n"
)
XE = (
    "drm-driver:\txe\ndrm-pdev:\t0000:03:00.0\ndrm-total-vram0:\t23992 KiB\ndrm-resident-vram0:\t23992 KiB\n"
    "drm-resident-gtt:\t192 KiB\ndrm-total-system:\t0\n"
)


@pytest.mark.parametrize(
    ("text", "regions"),
    [
        (AMD_OLD, {"cpu": 0, "gtt": 8192 << 10, "vram": 2068 << 10}),
        (AMD_NEW, {"cpu": 0, "gtt": 262144 << 10, "vram": 6291456 << 10}),
        (XE, {"gtt": 192 << 10, "system": 0, "vram": 23992 << 10}),
        ("drm-resident-local0: 5 MiB\ndrm-resident-local1: 6\n", {"local": (5 << 20) + 6}),
        ("", {}),
        ("drm-resident-vram0: lots KiB\ndrm-resident-vram: -4 KiB\n", {}),
    ],
)
def test_fdinfo(text: str, regions: dict[str, int]) -> None:
    assert fdinfo_regions(text) == regions


def test_a_client_that_two_descriptors_share_counts_once(machine: FakeMachine) -> None:
    sizes = {"mem_info_vram_total": 8 * GIB, "mem_info_vram_used": 0, "mem_info_vram_vendor": "samsung"}
    card(machine, 0, "0000:03:00.0", "1002", "7480", "amdgpu", sizes)
    text = "drm-driver:\tamdgpu\ndrm-client-id:\t7\ndrm-pdev:\t0000:03:00.0\ndrm-memory-vram:\t1024 KiB\n"
    fdinfo(machine, 10, "firefox", text)
    fdinfo(machine, 11, "firefox", text)
    fdinfo(machine, 12, "firefox", text.replace("\t7\n", "\t8\n"))
    (gpu,), _ = probe_amd(machine.root)
    assert [(holder.name, holder.size_bytes, holder.is_desktop) for holder in gpu.holders] == [
        ("firefox", 2 * MIB, True)
    ]


# Apple


@pytest.mark.parametrize(
    ("memory_gib", "mib"), [(16, 10922), (24, 16384), (32, 21845), (36, 27648), (64, 49152), (96, 73728), (128, 98304)]
)
def test_the_rule_gives_what_logs_say(memory_gib: int, mib: int) -> None:
    assert working_set_rule(memory_gib * GIB) // MIB == mib


def mac(machine: FakeMachine, *, limit_mib: int, working_set: int | None) -> Machine:
    text = f"hw.memsize: {16 * GIB}\nhw.optional.arm64: 1\niogpu.wired_limit_mb: {limit_mib}\n"
    metal = None if working_set is None else {"recommended_max_working_set_bytes": working_set}
    clients = Clients(run=lambda argv: text, metal=lambda: metal)
    return Machine(machine.root, system="Darwin", architecture="arm64", clients=clients)


@pytest.mark.parametrize(
    ("limit_mib", "working_set", "total"),
    [
        (12000, 12000 * MIB, 12000 * MIB),
        (0, 12124 * MIB, 12124 * MIB),
        (14000, None, 14000 * MIB),
        (0, None, 16 * GIB * 2 // 3),
        (20000, 20000 * MIB, 16 * GIB),
    ],
)
def test_metals_word_comes_before_the_setting_and_that_before_the_rule(
    machine: FakeMachine, limit_mib: int, working_set: int | None, total: int
) -> None:
    (gpu,), warnings = probe_apple(mac(machine, limit_mib=limit_mib, working_set=working_set))
    assert gpu.shared_total_bytes == total
    assert bool(warnings) is (total == 16 * GIB)


def test_elsewhere_than_on_a_mac_nothing_is_asked(machine: FakeMachine) -> None:
    assert probe_apple(Machine(machine.root, system="Linux")) == ((), ())


def test_in_a_container_nvmls_processes_have_no_names(machine: FakeMachine) -> None:
    """Their numbers are the host's: here they may be anyone's."""
    machine.write("/.dockerenv", "")
    machine.write("/proc/5/comm", "innocent\n")
    busy = FakeCard(
        name="NVIDIA GeForce RTX 3060",
        pci="0",
        memory=SIZES,
        compute=[FakeProcess(pid=5, usedGpuMemory=GIB), FakeProcess(pid=6, usedGpuMemory=GIB)],
    )
    (gpu,) = probe_everything(nvidia(machine, busy)).gpus
    assert [(holder.name, holder.size_bytes) for holder in gpu.holders] == [(None, 2 * GIB)]


def test_a_divided_card_without_slices_is_told(machine: FakeMachine) -> None:
    empty = FakeCard(name="NVIDIA H200", pci="0", memory=SIZES, slices=[None, None])
    gpus, warnings = probe_nvidia(nvidia(machine, empty))
    assert gpus == ()
    assert "has no slice that can be used" in warnings[0]
