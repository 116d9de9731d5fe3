"""Machines that people own, as file trees, fake drivers and answers of commands, from the samples of PROBES.md.

Figures of cards come from public reports where there are any; what is made up is as real machines have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fake_machine import GIB, KIB, MIB, FakeMachine
from fake_nvml import FakeCard, FakeNvml, FakeProcess, NVMLError_NotSupported, memory

from probes import Clients, Machine

Build = Callable[[FakeMachine], Machine]

DESKTOP_CPU = "avx avx2 fma f16c bmi2 ssse3 sse4_2"
RTX_4090 = memory(25757220864, 481296384, 839909376)
"""Total, reserved and used as in PROBES.md: 24436015104 bytes are free."""


def cpuinfo(model: str, flags: str, count: int = 4) -> str:
    return "".join(
        f"processor\t: {index}\nmodel name\t: {model}\ncore id\t\t: {index}\nflags\t\t: {flags}\nserial\t\t: 12345\n\n"
        for index in range(count)
    )


def meminfo(total_kib: int, available_kib: int, more: str = "") -> str:
    return (
        f"MemTotal:       {total_kib} kB\nMemFree:        {available_kib // 2} kB\nMemAvailable:   {available_kib} kB\n"
        f"SwapTotal:             0 kB\nSwapFree:              0 kB\n{more}"
    )


def linux(
    machine: FakeMachine,
    *,
    total_kib: int,
    available_kib: int,
    cpu: str = "AMD Ryzen 7 5800X 8-Core Processor",
    flags: str = DESKTOP_CPU,
    more: str = "",
    kernel: str = "6.12.48-amd64",
    cards: Sequence[FakeCard] | None = None,
    architecture: str = "x86_64",
) -> Machine:
    machine.write("/proc/meminfo", meminfo(total_kib, available_kib, more))
    machine.write("/proc/cpuinfo", cpuinfo(cpu, flags))
    machine.write("/proc/self/status", "Name:\tpython\nCpus_allowed_list:\t0-3\n")
    machine.write("/proc/sys/kernel/osrelease", f"{kernel}\n")
    clients = Clients() if cards is None else Clients(nvml=FakeNvml(cards))
    return Machine(machine.root, system="Linux", architecture=architecture, clients=clients)


def card(
    machine: FakeMachine, number: int, pci: str, vendor: str, device: str, driver: str, files: dict[str, object]
) -> None:
    """A card below /sys/class/drm, with the links that the kernel makes."""
    home = f"/sys/devices/pci0000:00/{pci}"
    for name, content in {"vendor": f"0x{vendor}", "device": f"0x{device}", **files}.items():
        machine.write(f"{home}/{name}", f"{content}\n")
    machine.write(f"/sys/bus/pci/drivers/{driver}/new_id", "")
    machine.link(f"{home}/driver", f"/sys/bus/pci/drivers/{driver}")
    machine.link(f"/sys/class/drm/card{number}/device", home)


def fdinfo(machine: FakeMachine, pid: int, name: str, text: str) -> None:
    """A process that has a graphics card open."""
    machine.write(f"/proc/{pid}/comm", f"{name}\n")
    machine.write(f"/proc/{pid}/fdinfo/7", text)
    folder = machine.root / f"proc/{pid}/fd"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "7").symlink_to("/dev/dri/renderD128")


# NVIDIA


def rtx_4090(machine: FakeMachine) -> Machine:
    for pid, name in ((900, "Xorg"), (901, "gnome-shell"), (902, "my-own-game")):
        machine.write(f"/proc/{pid}/comm", f"{name}\n")
    screen = [FakeProcess(pid=900, usedGpuMemory=301 * MIB), FakeProcess(pid=901, usedGpuMemory=400 * MIB)]
    here = FakeCard(
        name="NVIDIA GeForce RTX 4090",
        pci="00000000:01:00.0",
        memory=RTX_4090,
        graphics=screen,
        compute=[FakeProcess(pid=902, usedGpuMemory=100 * MIB)],
    )
    return linux(machine, total_kib=65769856, available_kib=58112340, cards=[here])


def two_cards(machine: FakeMachine) -> Machine:
    large = FakeCard(
        name="NVIDIA GeForce RTX 3090", pci="00000000:01:00.0", memory=memory(25769803776, 300 * MIB, 5 * MIB)
    )
    small = FakeCard(
        name="NVIDIA GeForce RTX 3060",
        pci="00000000:08:00.0",
        memory=memory(12884901888, 200 * MIB, 10 * MIB),
        knows_version_2=False,
    )
    return linux(machine, total_kib=32768000, available_kib=30000000, cards=[large, small])


def mig_slices(machine: FakeMachine) -> Machine:
    whole = memory(150323855360, 600 * MIB, 0)
    slices = [
        FakeCard(name="NVIDIA H200 MIG 1g.18gb", pci="", memory=memory(17179869184, 16 * MIB, 0), instance=7),
        None,
        FakeCard(name="NVIDIA H200 MIG 1g.18gb", pci="", memory=memory(17179869184, 16 * MIB, GIB), instance=8),
    ]
    machine.write("/proc/77/comm", "llama-server\n")
    holder = FakeProcess(pid=77, usedGpuMemory=GIB, gpuInstanceId=8)
    here = FakeCard(name="NVIDIA H200", pci="00000000:19:00.0", memory=whole, slices=slices, compute=[holder])
    return linux(machine, total_kib=263000000, available_kib=250000000, cards=[here])


def gb10(machine: FakeMachine) -> Machine:
    here = FakeCard(name="NVIDIA GB10", pci="0000000F:01:00.0", memory=NVMLError_NotSupported())
    flags = "asimd asimdhp asimddp i8mm sve sve2 bf16"
    return linux(
        machine,
        total_kib=127600748,
        available_kib=118566368,
        cpu="Cortex-X925",
        flags=flags,
        cards=[here],
        architecture="aarch64",
    )


def jetson_orin(machine: FakeMachine) -> Machine:
    machine.write("/proc/device-tree/model", "NVIDIA Jetson Orin Nano Developer Kit\0")
    here = FakeCard(name="Orin (nvgpu)", pci="00000000:00:00.0", memory=NVMLError_NotSupported())
    return linux(
        machine,
        total_kib=7802168,
        available_kib=6100000,
        cpu="Cortex-A78AE",
        flags="asimd asimdhp asimddp",
        cards=[here],
        architecture="aarch64",
    )


# AMD


def rx_7900_xtx(machine: FakeMachine) -> Machine:
    files = {
        "mem_info_vram_total": 25753026560,
        "mem_info_vram_used": 412090368,
        "mem_info_gtt_total": 33654075392,
        "mem_info_gtt_used": 20 * MIB,
        "mem_info_vram_vendor": "hynix",
    }
    card(machine, 1, "0000:03:00.0", "1002", "744c", "amdgpu", files)
    fdinfo(
        machine,
        1200,
        "kwin_wayland",
        "drm-driver:\tamdgpu\ndrm-client-id:\t217\ndrm-pdev:\t0000:03:00.0\ndrm-memory-vram:\t204800 KiB\n"
        "drm-memory-gtt:\t8192 KiB\n",
    )
    return linux(machine, total_kib=65769856, available_kib=60000000)


def _strix_halo(machine: FakeMachine, *, vram: int, gtt: int, total_kib: int) -> Machine:
    files = {
        "mem_info_vram_total": vram,
        "mem_info_vram_used": 256 * MIB,
        "mem_info_gtt_total": gtt,
        "mem_info_gtt_used": 64 * MIB,
        "drm/renderD128/dev": "226:128",
    }
    card(machine, 1, "0000:c5:00.0", "1002", "1586", "amdgpu", files)
    properties = "cpu_cores_count 0\nsimd_count 80\nvendor_id 4098\ndevice_id 5510\ndrm_render_minor 128\n"
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    machine.write(f"{nodes}/0/properties", "cpu_cores_count 32\nsimd_count 0\nvendor_id 0\n")
    machine.write(f"{nodes}/1/properties", f"{properties}gfx_target_version 110501\n")
    machine.write("/sys/module/ttm/parameters/pages_limit", f"{gtt // 4096}\n")
    machine.write("/sys/module/amdgpu/parameters/gttsize", "-1\n")
    machine.write("/sys/class/dmi/id/product_name", "NUCBOX_EVO-X2\n")
    flags = f"{DESKTOP_CPU} avx512f avx512_vnni"
    return linux(
        machine,
        total_kib=total_kib,
        available_kib=total_kib - 6 * GIB // KIB,
        cpu="AMD RYZEN AI MAX+ 395 w/ Radeon 8060S",
        flags=flags,
    )


def strix_halo_4(machine: FakeMachine) -> Machine:
    return _strix_halo(machine, vram=4294967296, gtt=103079215104, total_kib=127926272)


def strix_halo_96(machine: FakeMachine) -> Machine:
    return _strix_halo(machine, vram=103079215104, gtt=16616943616, total_kib=32455124)


def radeon_780m(machine: FakeMachine) -> Machine:
    files = {
        "mem_info_vram_total": 536870912,
        "mem_info_vram_used": 120 * MIB,
        "mem_info_gtt_total": 16106127360,
        "mem_info_gtt_used": 80 * MIB,
    }
    card(machine, 1, "0000:64:00.0", "1002", "15bf", "amdgpu", files)
    return linux(machine, total_kib=31457280, available_kib=24000000, cpu="AMD Ryzen 7 7840U w/ Radeon 780M Graphics")


# Intel


def arc_b580(machine: FakeMachine) -> Machine:
    files = {"tile0/physical_vram_size_bytes": 12884901888}
    card(machine, 0, "0000:03:00.0", "8086", "e20b", "xe", files)
    fdinfo(
        machine,
        1300,
        "llama-server",
        "drm-driver:\txe\ndrm-client-id:\t3\ndrm-pdev:\t0000:03:00.0\ndrm-total-vram0:\t23992 KiB\n"
        "drm-resident-vram0:\t23992 KiB\ndrm-resident-gtt:\t192 KiB\ndrm-total-system:\t0\n",
    )
    return linux(machine, total_kib=32768000, available_kib=28000000, cpu="Intel(R) Core(TM) i5-13400")


def uhd_beside_a_card(machine: FakeMachine) -> Machine:
    card(machine, 0, "0000:00:02.0", "8086", "3e98", "i915", {})
    card(machine, 1, "0000:01:00.0", "10de", "1fb9", "nvidia", {})
    quadro = FakeCard(name="Quadro T1000", pci="00000000:01:00.0", memory=memory(4294967296, 100 * MIB, 195 * MIB))
    return linux(machine, total_kib=74000000, available_kib=66000000, cpu="Intel(R) Core(TM) i9-9900K", cards=[quadro])


def n5105_nas(machine: FakeMachine) -> Machine:
    card(machine, 0, "0000:00:02.0", "8086", "4e61", "i915", {})
    machine.write("/sys/class/dmi/id/product_name", "To Be Filled By O.E.M.\n")
    flags = "ssse3 sse4_1 sse4_2 aes rdrand"
    return linux(
        machine, total_kib=16173220, available_kib=13800000, cpu="Intel(R) Celeron(R) N5105 @ 2.00GHz", flags=flags
    )


def n100_nas(machine: FakeMachine) -> Machine:
    card(machine, 0, "0000:00:02.0", "8086", "46d1", "i915", {})
    flags = f"{DESKTOP_CPU} avx_vnni"
    return linux(machine, total_kib=16173220, available_kib=13800000, cpu="Intel(R) N100", flags=flags)


# Apple

SYSCTL_CPU = "sysctl machdep.cpu hw.optional hw.physicalcpu hw.logicalcpu"


def _mac(
    machine: FakeMachine, *, chip: str, memory_bytes: int, available: int, limit_mib: int, metal: object
) -> Machine:
    answers = {
        "machdep.cpu": f"machdep.cpu.brand_string: {chip}\nhw.optional.arm.FEAT_DotProd: 1\n"
        "hw.physicalcpu: 8\nhw.logicalcpu: 8\n",
        "hw.memsize": f"hw.memsize: {memory_bytes}\nhw.optional.arm64: 1\nmachdep.cpu.brand_string: {chip}\n"
        f"iogpu.wired_limit_mb: {limit_mib}\n",
    }

    class Psutil:
        @staticmethod
        def virtual_memory() -> object:
            return type("Memory", (), {"total": memory_bytes, "available": available})

        @staticmethod
        def swap_memory() -> object:
            return type("Swap", (), {"total": 0, "free": 0})

    def ask_metal() -> object:
        if metal is None:
            raise OSError("Metal finds no device")
        return metal

    clients = Clients(run=lambda argv: answers[argv[1]], psutil=Psutil, metal=ask_metal)
    return Machine(machine.root, system="Darwin", architecture="arm64", clients=clients)


def m1_max(machine: FakeMachine) -> Machine:
    """With iogpu.wired_limit_mb=26000, as in whichllm#152; Metal says the same."""
    metal = {
        "name": "Apple M1 Max",
        "recommended_max_working_set_bytes": 26000 * MIB,
        "current_allocated_bytes": MIB,
        "max_buffer_bytes": 20 * GIB,
        "has_unified_memory": True,
    }
    return _mac(machine, chip="Apple M1 Max", memory_bytes=32 * GIB, available=20 * GIB, limit_mib=26000, metal=metal)


def m3_16(machine: FakeMachine) -> Machine:
    """Where Metal does not answer and nothing is set."""
    return _mac(machine, chip="Apple M3", memory_bytes=16 * GIB, available=6 * GIB, limit_mib=0, metal=None)


# Containers and the rest

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def docker(machine: FakeMachine) -> Machine:
    machine.write("/.dockerenv", "")
    machine.write("/proc/self/cgroup", "0::/\n")
    machine.write("/proc/self/mountinfo", V2_MOUNT)
    stat = {"anon": 900 * MIB, "inactive_file": 400 * MIB, "active_file": 150 * MIB}
    machine.group_v2("/sys/fs/cgroup", max=4 * GIB, current=1500 * MIB, stat=stat)
    return linux(machine, total_kib=65769856, available_kib=58112340)


def lxc(machine: FakeMachine) -> Machine:
    mounts = "88 60 0:50 /proc/meminfo /proc/meminfo rw,nosuid - fuse.lxcfs lxcfs rw,user_id=0\n"
    machine.write("/proc/self/cgroup", "0::/\n")
    machine.write("/proc/self/mountinfo", V2_MOUNT + mounts)
    machine.write("/run/systemd/container", "lxc\n")
    machine.write("/proc/spl/kstat/zfs/arcstats", ARCSTATS)
    machine.group_v2("/sys/fs/cgroup", max="max", current=GIB, stat={"inactive_file": 0, "active_file": 0})
    return linux(machine, total_kib=8388608, available_kib=7000000)


def nested_groups(machine: FakeMachine) -> Machine:
    machine.write("/proc/self/cgroup", "0::/user.slice/app.slice/llama-of-jane.service\n")
    machine.write("/proc/self/mountinfo", V2_MOUNT)
    top, none = "/sys/fs/cgroup/user.slice", {"inactive_file": 0, "active_file": 0}
    machine.group_v2(f"{top}/app.slice/llama-of-jane.service", max=12 * GIB, current=1 * GIB, stat=none)
    machine.group_v2(f"{top}/app.slice", max=8 * GIB, current=6 * GIB, stat=none)
    machine.group_v2(top, max="max", current=7 * GIB, stat=none)
    return linux(machine, total_kib=32768000, available_kib=28000000)


def version_1(machine: FakeMachine) -> Machine:
    machine.write("/proc/self/cgroup", "5:devices:/\n4:memory:/docker/0123456789abcdef\n")
    mount = "35 31 0:32 /docker/0123456789abcdef /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    machine.write("/proc/self/mountinfo", mount)
    stat = {"total_inactive_file": 300 * MIB, "total_active_file": 200 * MIB}
    machine.group_v1("/sys/fs/cgroup/memory", limit=2 * GIB, usage=1 * GIB, stat=stat)
    return linux(machine, total_kib=16173220, available_kib=13800000)


ARCSTATS = """\
12 1 0x01 98 26656 1920163911 654183491814
name                            type data
hits                            4    1115656
c                               4    4123168768
c_min                           4    519094272
c_max                           4    8306343936
size                            4    3987654321
arc_meta_used                   4    412345678
"""


def zfs_nas(machine: FakeMachine) -> Machine:
    machine.write("/proc/spl/kstat/zfs/arcstats", ARCSTATS)
    return linux(machine, total_kib=16173220, available_kib=9000000, cpu="Intel(R) N100")


def wsl2(machine: FakeMachine) -> Machine:
    machine.write("/dev/dxg", "")
    desktop = FakeProcess(pid=79, usedGpuMemory=None)
    here = FakeCard(
        name="NVIDIA GeForce RTX 4070",
        pci="00000000:01:00.0",
        memory=memory(12878610432, 200 * MIB, 1000 * MIB),
        knows_version_2=False,
        compute=[desktop],
    )
    kernel = "5.15.153.1-microsoft-standard-WSL2"
    return linux(machine, total_kib=16310284, available_kib=15000000, kernel=kernel, cards=[here])


def hugepages(machine: FakeMachine) -> Machine:
    more = "HugePages_Total:    4096\nHugePages_Free:     1024\nHugepagesize:       2048 kB\n"
    return linux(machine, total_kib=16173220, available_kib=5000000, more=more)


def virtual_machine(machine: FakeMachine) -> Machine:
    """A guest whose processor is kvm64."""
    flags = "sse sse2 hypervisor"
    return linux(machine, total_kib=8000000, available_kib=7000000, cpu="Common KVM processor", flags=flags)


def windows_radeon(machine: FakeMachine) -> Machine:
    adapters = [
        {"name": "AMD Radeon RX 6800", "device": "PCI\\VEN_1002&DEV_73BF", "memory_bytes": 17163091968},
        {"name": "AMD Radeon(TM) Graphics", "device": "PCI\\VEN_1002&DEV_164E", "memory_bytes": 536870912},
        {"name": "NVIDIA GeForce RTX 3060", "device": "PCI\\VEN_10DE&DEV_2503", "memory_bytes": 12884901888},
    ]
    found = {
        "total_bytes": 34290000000,
        "available_bytes": 20000000000,
        "commit_total_bytes": 40000000000,
        "commit_available_bytes": 25000000000,
    }
    clients = Clients(nvml=FakeNvml(()), windows_memory=lambda: found, windows_adapters=lambda: adapters)
    return Machine(machine.root, system="Windows", architecture="AMD64", clients=clients)


MACHINES: dict[str, Build] = {
    build.__name__: build
    for build in (
        rtx_4090,
        two_cards,
        mig_slices,
        gb10,
        jetson_orin,
        rx_7900_xtx,
        strix_halo_4,
        strix_halo_96,
        radeon_780m,
        arc_b580,
        uhd_beside_a_card,
        n5105_nas,
        n100_nas,
        m1_max,
        m3_16,
        docker,
        lxc,
        nested_groups,
        version_1,
        zfs_nas,
        wsl2,
        hugepages,
        virtual_machine,
        windows_radeon,
    )
}


def build(name: str, folder: Path) -> Machine:
    """The machine of this name, below a folder of its own."""
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    return MACHINES[name](FakeMachine(home))
