"""A run's look at graphics processors: opened once, asked often, and never in the way."""

from __future__ import annotations

import pytest
from fake_machine import GIB, KIB, MIB, FakeMachine
from fake_nvml import FakeCard, FakeNvml, FakeProcess, NVMLError_LibraryNotFound, memory
from sample_machines import RTX_4090, card, fdinfo, linux

from probes import Clients, Machine, probe_everything
from probes.device_watch import DeviceWatch, FreeMemory
from probes.nvidia import WSL_MARGIN_BYTES
from probes.process_devices import DeviceMemory


def rtx_4090() -> FakeCard:
    return FakeCard(name="NVIDIA GeForce RTX 4090", pci="00000000:01:00.0", memory=dict(RTX_4090))


def with_nvml(machine: FakeMachine, nvml: FakeNvml, kernel: str = "6.12.48-amd64") -> Machine:
    seen = linux(machine, total_kib=65769856, available_kib=58112340, kernel=kernel)
    return Machine(seen.root, system="Linux", clients=Clients(nvml=nvml))


def test_nvml_is_opened_once_for_many_looks(machine: FakeMachine) -> None:
    here, held = rtx_4090(), FakeProcess(pid=42, usedGpuMemory=GIB)
    nvml = FakeNvml([here])
    with DeviceWatch(with_nvml(machine, nvml)) as watch:
        assert watch.free() == (FreeMemory(device="0000:01:00.0", own_bytes=RTX_4090["free"], shared_bytes=None),)
        here.compute = [held]
        for size in (GIB, 2 * GIB, 3 * GIB):
            held.usedGpuMemory = size
            here.memory = memory(RTX_4090["total"], RTX_4090["reserved"], RTX_4090["used"] + size)
            assert [device.own_bytes for device in watch.held(42).devices] == [size]
            assert [free.own_bytes for free in watch.free()] == [RTX_4090["free"] - size]
        assert nvml.is_open
    assert (nvml.times_opened, nvml.is_open) == (1, False)


def test_a_library_that_cannot_shut_down_ends_nothing(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: FakeNvml) -> None:
        raise OSError("exception: access violation reading 0x0")

    monkeypatch.setattr(FakeNvml, "nvmlShutdown", broken)
    here = with_nvml(machine, FakeNvml([rtx_4090()]))
    with DeviceWatch(here) as watch:
        assert watch.free()[0].own_bytes == RTX_4090["free"]
    assert [gpu.total_bytes for gpu in probe_everything(here).gpus] == [RTX_4090["total"]]


def test_holders_with_figures_that_cannot_be_have_none(machine: FakeMachine) -> None:
    used = {41: (5 * GIB, None), 42: (-7, 1), 43: (1 << 45, None), 44: (None, 3 * GIB)}
    here = rtx_4090()
    here.compute, here.graphics = (
        [FakeProcess(pid=pid, usedGpuMemory=sizes[index]) for pid, sizes in used.items()] for index in (0, 1)
    )
    for pid in used:
        machine.write(f"/proc/{pid}/comm", f"program {pid}\n")
    (gpu,) = probe_everything(with_nvml(machine, FakeNvml([here]))).gpus
    assert {holder.name: holder.size_bytes for holder in gpu.holders} == {
        "program 41": 5 * GIB, "program 42": 1, "program 43": None, "program 44": 3 * GIB
    }  # fmt: skip


def test_wsl2_hands_out_less_than_nvml_says(machine: FakeMachine) -> None:
    here = with_nvml(machine, FakeNvml([rtx_4090()]), kernel="6.6.87.2-microsoft-standard-WSL2")
    with DeviceWatch(here) as watch:
        assert watch.free()[0].own_bytes == RTX_4090["free"] - WSL_MARGIN_BYTES


def test_a_card_that_is_divided_or_lost_has_no_figure(machine: FakeMachine) -> None:
    divided = FakeCard(name="NVIDIA H200", pci="00000000:19:00.0", memory=memory(GIB, 0, 0), slices=[None])
    lost = FakeCard(name="a", pci="00000000:20:00.0", memory=memory(GIB, 0, 0), is_lost=True)
    with DeviceWatch(with_nvml(machine, FakeNvml([lost, divided]))) as watch:
        assert watch.free() == (FreeMemory(device="0000:19:00.0", own_bytes=None, shared_bytes=None),)


def test_amdgpu_is_read_anew_at_every_look(machine: FakeMachine) -> None:
    sizes = {"vram_total": 24 * GIB, "vram_used": GIB, "gtt_total": 32 * GIB, "gtt_used": 100 * MIB}
    here = linux(machine, total_kib=65769856, available_kib=58112340)
    files: dict[str, object] = {f"mem_info_{name}": size for name, size in sizes.items()}
    card(machine, 0, "0000:03:00.0", "1002", "744c", "amdgpu", files)
    with DeviceWatch(here) as watch:
        assert watch.free() == (
            FreeMemory(device="0000:03:00.0", own_bytes=23 * GIB, shared_bytes=32 * GIB - 100 * MIB),
        )
        machine.write("/sys/class/drm/card0/device/mem_info_vram_used", f"{20 * GIB}\n")
        assert watch.free()[0].own_bytes == 4 * GIB
        machine.write("/sys/class/drm/card0/device/mem_info_gtt_used", "nonsense\n")
        assert watch.free()[0].shared_bytes is None
        fdinfo(machine, 42, "llama-server", "drm-driver:\tamdgpu\ndrm-pdev:\t0000:03:00.0\ndrm-resident-vram:\t8 KiB\n")
        assert watch.held(42).devices == (
            DeviceMemory(device="0000:03:00.0", own_bytes=8 * KIB, shared_bytes=0, source="/proc/42/fdinfo"),
        )


@pytest.mark.parametrize(("system", "reasons"), [("Linux", ("nvml: not here",)), ("Windows", ())])
def test_a_library_that_does_not_start_is_a_reason_where_there_is_a_sign_of_it(
    machine: FakeMachine, system: str, reasons: tuple[str, ...]
) -> None:
    nvml = FakeNvml((), NVMLError_LibraryNotFound("not here"))
    clients = Clients(nvml=nvml, counters=lambda _path: {})
    with DeviceWatch(Machine(machine.root, system=system, clients=clients)) as watch:
        assert watch.held(42).reasons == reasons
        assert watch.free() == ()


def test_each_driver_is_known_with_its_version(machine: FakeMachine) -> None:
    here = linux(machine, total_kib=65769856, available_kib=58112340, cards=[rtx_4090()])
    card(machine, 0, "0000:03:00.0", "1002", "744c", "amdgpu", {"mem_info_vram_total": 24 * GIB})
    card(machine, 1, "0000:04:00.0", "8086", "e20b", "xe", {"tile0/physical_vram_size_bytes": 12 * GIB})
    told = {gpu.vendor: gpu.driver for gpu in probe_everything(here).gpus}
    assert told == {
        "nvidia": "NVIDIA 580.95.05",
        "amd": "amdgpu of Linux 6.12.48-amd64",
        "intel": "xe of Linux 6.12.48-amd64",
    }
    machine.write("/sys/module/amdgpu/version", "6.14.14\n")
    again = Machine(here.root, system="Linux", clients=here.clients)
    assert {gpu.driver for gpu in probe_everything(again).gpus if gpu.vendor == "amd"} == {"amdgpu 6.14.14"}


def test_on_a_mac_the_system_is_the_driver(machine: FakeMachine) -> None:
    def run(command: object) -> str:
        return "26.1\n" if command == ("sw_vers", "-productVersion") else "hw.memsize: 17179869184\n"

    here = Machine(machine.root, system="Darwin", architecture="arm64", clients=Clients(run=run, metal=dict))
    assert [gpu.driver for gpu in probe_everything(here).gpus] == ["macOS 26.1"]
