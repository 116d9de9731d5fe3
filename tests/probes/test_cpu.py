from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_machine import FakeMachine
from hypothesis import given
from hypothesis import strategies as st

from probes import probe_cpu

N100 = """\
processor\t: {cpu}
vendor_id\t: GenuineIntel
model name\t: Intel(R) N100
physical id\t: 0
core id\t\t: {cpu}
flags\t\t: fpu sse4_2 avx avx2 f16c fma bmi2 avx_vnni
bugs\t\t: spectre_v1

"""
PI_5 = """\
processor\t: {cpu}
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm aes crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU part\t: 0xd0b

"""
APPLE = """\
machdep.cpu.cores_per_package: 10
machdep.cpu.brand_string: Apple M2 Pro
hw.optional.arm.FEAT_DotProd: 1
hw.optional.arm.FEAT_I8MM: 1
hw.optional.arm.FEAT_SME: 0
hw.optional.floatingpoint: 1
hw.physicalcpu: 10
hw.logicalcpu: 10
"""
INTEL_MAC = """\
machdep.cpu.brand_string: Intel(R) Core(TM) i5-8500B CPU @ 3.00GHz
machdep.cpu.features: FPU SSE4.1 SSE4.2 FMA AVX1.0 F16C
machdep.cpu.leaf7_features: RDWRFSGS BMI2 AVX2
hw.physicalcpu: 6
hw.logicalcpu: 6
"""


def write_cpus(machine: FakeMachine, block: str, count: int, allowed: str) -> None:
    machine.write("/proc/cpuinfo", "".join(block.format(cpu=cpu) for cpu in range(count)))
    machine.write("/proc/self/status", f"Name:\tpython\nCpus_allowed:\tf\nCpus_allowed_list:\t{allowed}\n")


def test_x86(machine: FakeMachine) -> None:
    write_cpus(machine, N100, 4, "0-3")
    cpu = probe_cpu(machine.root, system="Linux", machine="x86_64")
    assert cpu.model == "Intel(R) N100"
    assert cpu.architecture == "x86_64"
    assert (cpu.physical_cores, cpu.logical_cores, cpu.quota_cores) == (4, 4, None)
    assert cpu.features == {"fpu", "sse4_2", "avx", "avx2", "f16c", "fma", "bmi2", "avx_vnni"}
    assert cpu.warnings == ()


def test_arm_is_named_by_its_board(machine: FakeMachine) -> None:
    write_cpus(machine, PI_5, 4, "0-3")
    machine.write("/proc/device-tree/model", "Raspberry Pi 5 Model B Rev 1.0\0")
    cpu = probe_cpu(machine.root, system="Linux", machine="aarch64")
    assert cpu.model == "Raspberry Pi 5 Model B Rev 1.0"
    assert {"asimddp", "asimdhp"} <= cpu.features
    assert "i8mm" not in cpu.features
    assert cpu.physical_cores is None
    assert "physical_cores: unknown" in cpu.warnings


def test_only_features_that_all_cores_have_count(machine: FakeMachine) -> None:
    little = PI_5.replace("asimddp", "").format(cpu=1)
    machine.write("/proc/cpuinfo", PI_5.format(cpu=0) + little)
    assert "asimddp" not in probe_cpu(machine.root, system="Linux", machine="aarch64").features


def test_cores_are_those_of_the_affinity_mask(machine: FakeMachine) -> None:
    write_cpus(machine, N100, 8, "0-2,4")
    for cpu in range(8):
        siblings = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        machine.write(siblings, f"{cpu % 4},{cpu % 4 + 4}\n")
    cpu = probe_cpu(machine.root, system="Linux", machine="x86_64")
    assert (cpu.physical_cores, cpu.logical_cores) == (3, 4)


def test_mask_that_names_absent_processors_counts_those_that_exist(machine: FakeMachine) -> None:
    write_cpus(machine, N100, 4, "0-127")
    assert probe_cpu(machine.root, system="Linux").logical_cores == 4


@pytest.mark.parametrize("allowed", ["", "x", "3-1", "0-99999999999", "-1", "0,,2"])
def test_strange_mask_is_a_warning(machine: FakeMachine, allowed: str) -> None:
    write_cpus(machine, N100, 4, allowed)
    cpu = probe_cpu(machine.root, system="Linux")
    assert cpu.logical_cores == 4
    assert any("Cpus_allowed_list not understood" in warning for warning in cpu.warnings)


def test_quota_of_the_control_group(machine: FakeMachine) -> None:
    write_cpus(machine, N100, 4, "0-3")
    machine.write("/proc/self/cgroup", "0::/\n")
    machine.write("/sys/fs/cgroup/cpu.max", "150000 100000\n")
    assert probe_cpu(machine.root, system="Linux").quota_cores == 1.5


def test_nothing_readable_is_all_unknown(machine: FakeMachine) -> None:
    machine.make_unreadable("/proc/cpuinfo")
    cpu = probe_cpu(machine.root, system="Linux", machine="x86_64")
    assert cpu.model is cpu.physical_cores is cpu.logical_cores is None
    assert cpu.features == frozenset()
    assert cpu.sources == ()
    assert "/proc/cpuinfo: Is a directory" in cpu.warnings


@pytest.mark.parametrize(
    ("output", "machine_name", "architecture", "features", "cores"),
    [
        (APPLE, "arm64", "aarch64", {"asimddp", "i8mm"}, 10),
        (
            INTEL_MAC,
            "x86_64",
            "x86_64",
            {"fpu", "sse4_1", "sse4_2", "fma", "avx", "f16c", "rdwrfsgs", "bmi2", "avx2"},
            6,
        ),
    ],
)
def test_macos(
    tmp_path: Path, output: str, machine_name: str, architecture: str, features: set[str], cores: int
) -> None:
    calls = []

    def run(argv: Sequence[str]) -> str:
        calls.append(list(argv))
        return output

    cpu = probe_cpu(tmp_path, run=run, system="Darwin", machine=machine_name)
    assert len(calls) == 1
    assert calls[0][0] == "sysctl"
    assert cpu.model is not None
    assert cpu.model in output
    assert cpu.architecture == architecture
    assert cpu.features == features
    assert (cpu.physical_cores, cpu.logical_cores) == (cores, cores)
    assert cpu.warnings == ()


def test_macos_without_sysctl(tmp_path: Path) -> None:
    def run(argv: Sequence[str]) -> str:
        raise FileNotFoundError(2, "No such file or directory")

    cpu = probe_cpu(tmp_path, run=run, system="Darwin", machine="arm64")
    assert cpu.warnings[0] == "sysctl: No such file or directory"
    assert cpu.features == frozenset()


def test_windows_figures_fail_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 6)
    monkeypatch.setattr("psutil.Process", None)
    cpu = probe_cpu(tmp_path, system="Windows", machine="AMD64")
    assert cpu.architecture == "x86_64"
    assert cpu.physical_cores == 6
    assert cpu.logical_cores is None
    assert any(warning.startswith("logical_cores: psutil") for warning in cpu.warnings)


def test_unknown_system(tmp_path: Path) -> None:
    assert probe_cpu(tmp_path, system="Plan 9").warnings[0] == "no processor probe for Plan 9"


@given(cpuinfo=st.binary(max_size=200), status=st.binary(max_size=60), sysctl=st.text(max_size=100))
def test_no_content_raises(
    tmp_path_factory: pytest.TempPathFactory, cpuinfo: bytes, status: bytes, sysctl: str
) -> None:
    machine = FakeMachine(tmp_path_factory.mktemp("machine"))
    machine.write("/proc/cpuinfo", b"processor: 0\n" + cpuinfo)
    machine.write("/proc/self/status", b"Cpus_allowed_list:" + status)
    probe_cpu(machine.root, system="Linux")
    probe_cpu(machine.root, system="Darwin", run=lambda argv: sysctl)


def test_this_machine() -> None:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        pytest.skip("no /proc/cpuinfo")
    cpu = probe_cpu()
    assert ("avx2" in cpu.features) == (" avx2 " in cpuinfo.read_text())
    assert cpu.logical_cores == len(os.sched_getaffinity(0))
    assert cpu.physical_cores is None or 1 <= cpu.physical_cores <= cpu.logical_cores
