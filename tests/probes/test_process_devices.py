from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_machine import GIB, KIB, MIB, FakeMachine
from fake_nvml import FakeCard, FakeNvml, FakeProcess, NVMLError_LibraryNotFound, memory
from sample_machines import V2_MOUNT, fdinfo

from probes import Clients, DeviceMemory, Machine, ProcessDevices, probe_group_peak, probe_process_devices
from probes.process import read_footprint

AMDGPU = (
    "drm-driver:\tamdgpu\ndrm-client-id:\t5\ndrm-pdev:\t0000:c5:00.0\ndrm-resident-vram:\t1024 KiB\n"
    "drm-resident-gtt:\t4096 KiB\ndrm-resident-cpu:\t64 KiB\n"
)


def test_amdgpu_tells_both_memories(machine: FakeMachine) -> None:
    fdinfo(machine, 42, "llama-server", AMDGPU)
    found = probe_process_devices(42, Machine(machine.root, system="Linux"))
    assert found.devices == (
        DeviceMemory(device="0000:c5:00.0", own_bytes=1024 * KIB, shared_bytes=4096 * KIB, source="/proc/42/fdinfo"),
    )
    assert found.reasons == ()


def test_nvml_tells_what_a_process_holds_of_each_card(machine: FakeMachine) -> None:
    sizes = memory(24 * GIB, 0, 9 * GIB)
    here = FakeProcess(pid=42, usedGpuMemory=9 * GIB)
    other = FakeProcess(pid=43, usedGpuMemory=GIB)
    cards = [
        FakeCard(name="a", pci="00000000:01:00.0", memory=sizes, compute=[here, other]),
        FakeCard(name="b", pci="00000000:02:00.0", memory=sizes, compute=[other]),
    ]
    found = probe_process_devices(42, Machine(machine.root, system="Linux", clients=Clients(nvml=FakeNvml(cards))))
    assert [(device.device, device.own_bytes) for device in found.devices] == [("0000:01:00.0", 9 * GIB)]


def test_wsl2_does_not_say_and_a_container_does_not_list(machine: FakeMachine) -> None:
    silent = FakeCard(name="a", pci="0", memory=memory(GIB, 0, 0), compute=[FakeProcess(pid=42, usedGpuMemory=None)])
    here = Machine(machine.root, system="Linux", clients=Clients(nvml=FakeNvml([silent])))
    found = probe_process_devices(42, here)
    assert found.devices[0].own_bytes is None
    assert "does not say" in found.reasons[0]
    assert "inside a container" in probe_process_devices(7, here).reasons[0]


def held_of_card(machine: FakeMachine, compute: list[int | None], graphics: list[int | None]) -> ProcessDevices:
    """What process 42 holds of a card of 24 GiB that lists it with these figures."""
    listed = [[FakeProcess(pid=42, usedGpuMemory=size) for size in sizes] for sizes in (compute, graphics)]
    card = FakeCard(name="a", pci="0", memory=memory(24 * GIB, 0, GIB), compute=listed[0], graphics=listed[1])
    return probe_process_devices(42, Machine(machine.root, system="Linux", clients=Clients(nvml=FakeNvml([card]))))


@pytest.mark.parametrize(
    ("compute", "graphics", "size"),
    [
        ([5 * GIB], [None], 5 * GIB),
        ([None], [5 * GIB], 5 * GIB),
        ([GIB], [2 * GIB], 2 * GIB),
        ([2 * GIB], [GIB], 2 * GIB),
        ([GIB], [1 << 45], GIB),
        ([0], [], 0),
        ([24 * GIB], [], 24 * GIB),
    ],
)
def test_a_process_that_is_listed_twice_holds_the_larger_figure(
    machine: FakeMachine, compute: list[int | None], graphics: list[int | None], size: int
) -> None:
    found = held_of_card(machine, compute, graphics)
    assert ([device.own_bytes for device in found.devices], found.reasons) == ([size], ())


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (-7, "nvml: the driver says that a process holds -7 bytes of 0, which cannot be"),
        (1 << 45, "nvml: the driver says that a process holds 35,184,372,088,832 bytes of 0, which cannot be"),
        ((1 << 64) - 1, "nvml: the driver does not say what a process holds of 0 (WSL2, Windows)"),
    ],
)
def test_a_figure_that_cannot_be_is_unknown(machine: FakeMachine, size: int, reason: str) -> None:
    found = held_of_card(machine, [size], [])
    assert ([device.own_bytes for device in found.devices], found.reasons) == ([None], (reason,))


def test_a_library_that_does_not_start_is_a_reason(machine: FakeMachine) -> None:
    nvml = FakeNvml((), NVMLError_LibraryNotFound("NVML Shared Library Not Found"))
    found = probe_process_devices(42, Machine(machine.root, system="Linux", clients=Clients(nvml=nvml)))
    assert (found.devices, found.reasons) == ((), ("nvml: NVML Shared Library Not Found",))


def test_windows_counters(machine: FakeMachine) -> None:
    asked: list[str] = []

    def counters(path: str) -> dict[str, int]:
        asked.append(path)
        if path.endswith("Shared Usage"):
            raise OSError("PDH says 0xc0000bb8")
        return {"pid_42_luid_0x00000000_0x0000D1D1_phys_0": 5 * GIB}

    here = Machine(machine.root, system="Windows", clients=Clients(counters=counters))
    found = probe_process_devices(42, here)
    assert asked[0] == "\\GPU Process Memory(pid_42_*)\\Dedicated Usage"
    assert [(device.device, device.own_bytes, device.shared_bytes) for device in found.devices] == [
        ("luid_0x00000000_0x0000D1D1_phys_0", 5 * GIB, None)
    ]
    assert found.reasons == ("Shared Usage: PDH says 0xc0000bb8",)


def test_elsewhere_there_is_a_reason_and_no_figure(machine: FakeMachine) -> None:
    found = probe_process_devices(42, Machine(machine.root, system="Darwin"))
    assert (found.devices, len(found.reasons)) == ((), 1)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has the counters")
def test_elsewhere_than_on_windows_the_real_counters_are_a_reason(machine: FakeMachine) -> None:
    found = probe_process_devices(42, Machine(machine.root, system="Windows"))
    assert found.reasons == tuple(
        f"{name}: only Windows has such counters" for name in ("Dedicated Usage", "Shared Usage")
    )


@pytest.mark.parametrize("text", ["", "drm-pdev: 0\n", "\0\xff", "drm-resident-vram: many KiB\n"])
def test_strange_fdinfo_is_nothing(machine: FakeMachine, text: str) -> None:
    fdinfo(machine, 42, "x", text)
    assert probe_process_devices(42, Machine(machine.root, system="Linux")).devices == ()


def test_a_footprint_is_read_where_the_structure_has_it(tmp_path: Path) -> None:
    """A library of the same shape as macOS' stands in for it."""
    source = tmp_path / "libproc.c"
    source.write_text(
        "#include <stdint.h>\n#include <string.h>\n"
        "struct rusage_info_v0 { uint8_t ri_uuid[16]; uint64_t ri_user_time, ri_system_time, ri_pkg_idle_wkups,\n"
        "  ri_interrupt_wkups, ri_pageins, ri_wired_size, ri_resident_size, ri_phys_footprint,\n"
        "  ri_proc_start_abstime, ri_proc_exit_abstime; };\n"
        "int proc_pid_rusage(int pid, int flavor, void *out) {\n"
        "  struct rusage_info_v0 found; memset(&found, 0, sizeof found);\n"
        "  found.ri_resident_size = 1; found.ri_phys_footprint = 123456789; found.ri_proc_start_abstime = 2;\n"
        "  memcpy(out, &found, sizeof found); return pid == 42 ? 0 : -1; }\n"
    )
    library = tmp_path / "libproc.so"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, capture_output=True)
    except OSError:
        pytest.skip("no C compiler")
    assert read_footprint(42, str(library)) == 123456789
    with pytest.raises(OSError, match="no answer for process 43"):
        read_footprint(43, str(library))


def test_the_peak_of_a_group(machine: FakeMachine) -> None:
    machine.write("/proc/42/cgroup", "0::/system.slice/llama.service\n")
    machine.write("/proc/self/mountinfo", V2_MOUNT)
    machine.write("/sys/fs/cgroup/system.slice/llama.service/memory.peak", f"{3 * GIB}\n")
    machine.write("/sys/fs/cgroup/system.slice/memory.peak", f"{9 * GIB}\n")
    assert probe_group_peak(42, machine.root) == (3 * GIB, ())


def test_the_peak_of_a_version_1_group(machine: FakeMachine) -> None:
    machine.write("/proc/42/cgroup", "4:memory:/a\n0::/\n")
    machine.write("/sys/fs/cgroup/memory/a/memory.max_usage_in_bytes", f"{700 * MIB}\n")
    assert probe_group_peak(42, machine.root)[0] == 700 * MIB


@pytest.mark.parametrize("content", ["", "max\n", "-1\n", "\0"])
def test_a_peak_that_makes_no_sense_is_unknown(machine: FakeMachine, content: str) -> None:
    machine.write("/proc/42/cgroup", "0::/\n")
    machine.write("/sys/fs/cgroup/memory.peak", content)
    peak, reasons = probe_group_peak(42, machine.root)
    assert peak is None
    assert any("memory.peak: not a size" in reason for reason in reasons)


def test_a_process_that_is_gone_has_no_peak(machine: FakeMachine) -> None:
    peak, reasons = probe_group_peak(42, machine.root)
    assert (peak, len(reasons)) == (None, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads this machine's /proc")
def test_this_process_has_a_peak_or_a_reason() -> None:
    peak, reasons = probe_group_peak(os.getpid())
    assert peak is None or peak > 10 * MIB
    assert peak is not None or reasons
    assert probe_process_devices(os.getpid()).devices == ()
