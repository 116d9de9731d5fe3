from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from fake_machine import GIB, KIB, MEMINFO, MIB, FakeMachine
from hypothesis import given
from hypothesis import strategies as st
from sample_machines import ARCSTATS

from probes import Clients, Machine, probe_host

AVAILABLE = 22493612 * KIB


def test_plain_host_may_use_what_the_kernel_says_is_available(host: FakeMachine) -> None:
    memory = probe_host(host.root)
    assert memory.total_bytes == 24684084 * KIB == 25276502016
    assert memory.available_bytes == memory.usable_bytes == AVAILABLE
    assert memory.swap_total_bytes == 2 * GIB
    assert memory.swap_free_bytes == 1 * GIB
    assert memory.limits == memory.warnings == ()
    assert "available_bytes: /proc/meminfo MemAvailable" in memory.sources
    assert "usable_bytes: available_bytes, which no control group limit lowers" in memory.sources


def test_limit_lowers_usable_and_its_source_shows_the_sum(host: FakeMachine) -> None:
    host.write("/proc/self/cgroup", "0::/\n")
    stat = {"inactive_file": 1 * GIB, "active_file": 512 * MIB}
    host.group_v2("/sys/fs/cgroup", max=8 * GIB, current=3 * GIB, stat=stat)
    memory = probe_host(host.root)
    assert memory.available_bytes == AVAILABLE
    assert memory.usable_bytes == 8 * GIB - 3 * GIB + 1 * GIB + 512 * MIB
    assert memory.sources[-1] == (
        "usable_bytes: /sys/fs/cgroup/memory.max 8589934592 - 3221225472 used + 1610612736 page cache"
    )
    assert memory.warnings == ()


def test_limit_with_more_room_than_the_host_changes_nothing(host: FakeMachine) -> None:
    host.write("/proc/self/cgroup", "0::/\n")
    host.group_v2("/sys/fs/cgroup", max=23 * GIB, current=0, stat={"inactive_file": 0, "active_file": 0})
    memory = probe_host(host.root)
    assert len(memory.limits) == 1
    assert memory.usable_bytes == AVAILABLE


def test_limit_below_usage_leaves_nothing_and_never_less(host: FakeMachine) -> None:
    host.write("/proc/self/cgroup", "0::/\n")
    stat = {"inactive_file": 10 * MIB, "active_file": 0}
    host.group_v2("/sys/fs/cgroup", max=1 * GIB, current=2 * GIB, stat=stat)
    assert probe_host(host.root).usable_bytes == 0


def test_unknown_use_counts_the_whole_limit_and_warns(host: FakeMachine) -> None:
    host.write("/proc/self/cgroup", "0::/\n")
    host.write("/sys/fs/cgroup/memory.max", f"{2 * GIB}\n")
    memory = probe_host(host.root)
    assert memory.limits[0].used_bytes is memory.limits[0].available_bytes is None
    assert memory.usable_bytes == 2 * GIB
    assert any("memory.current: unknown" in warning for warning in memory.warnings)


def test_total_of_zero_is_unknown(host: FakeMachine) -> None:
    """lxcfs#389."""
    host.write("/proc/meminfo", MEMINFO.replace("24684084", "       0"))
    memory = probe_host(host.root)
    assert memory.total_bytes is memory.available_bytes is memory.usable_bytes is None
    assert memory.swap_total_bytes == 2 * GIB
    assert any("MemTotal is 0" in warning for warning in memory.warnings)


def test_total_of_zero_leaves_the_limit_as_the_only_figure(host: FakeMachine) -> None:
    host.write("/proc/meminfo", MEMINFO.replace("24684084", "       0"))
    host.write("/proc/self/cgroup", "0::/\n")
    host.group_v2("/sys/fs/cgroup", max=4 * GIB, current=GIB, stat={"inactive_file": 0, "active_file": 0})
    memory = probe_host(host.root)
    assert memory.usable_bytes == 3 * GIB
    assert any(warning.startswith("usable_bytes: ") for warning in memory.warnings)


def test_available_above_total_is_not_believed(host: FakeMachine) -> None:
    host.write("/proc/meminfo", MEMINFO.replace("22493612", "32493612"))
    memory = probe_host(host.root)
    assert memory.usable_bytes == memory.total_bytes == 24684084 * KIB
    assert len(memory.warnings) == 1


@pytest.mark.parametrize(
    "content", ["", "\n\n", "MemTotal: lots kB\n", "MemTotal 5", b"\xff\x00\xfe", "MemTotal: -5 kB"]
)
def test_malformed_meminfo_is_unknown_with_warnings(machine: FakeMachine, content: str | bytes) -> None:
    machine.write("/proc/meminfo", content)
    memory = probe_host(machine.root)
    assert memory.total_bytes is memory.usable_bytes is memory.swap_free_bytes is None
    assert any("MemTotal not found" in warning for warning in memory.warnings)


def test_one_missing_line_costs_only_its_figure(host: FakeMachine) -> None:
    host.write("/proc/meminfo", "".join(MEMINFO.splitlines(keepends=True)[:2]))
    memory = probe_host(host.root)
    assert memory.total_bytes == 24684084 * KIB
    assert memory.usable_bytes is None
    assert any("MemAvailable not found" in warning for warning in memory.warnings)


def test_unreadable_and_missing_meminfo_are_unknown_with_a_warning(machine: FakeMachine) -> None:
    assert probe_host(machine.root).warnings == ("/proc/meminfo: not found",)
    machine.make_unreadable("/proc/meminfo")
    memory = probe_host(machine.root)
    assert memory.total_bytes is None
    assert memory.warnings == ("/proc/meminfo: Is a directory",)


def test_without_meminfo_psutil_is_asked(machine: FakeMachine) -> None:
    memory = probe_host(Machine(machine.root, system="Darwin"))
    assert memory.total_bytes == psutil.virtual_memory().total
    assert memory.usable_bytes == memory.available_bytes
    assert "total_bytes: psutil.virtual_memory().total" in memory.sources


def test_psutil_that_fails_is_a_warning(machine: FakeMachine) -> None:
    broken = SimpleNamespace()
    memory = probe_host(Machine(machine.root, system="Darwin", clients=Clients(psutil=broken)))
    assert memory.usable_bytes is None
    assert memory.warnings[0].startswith("psutil memory: ")


def test_zfs_cache_beyond_its_minimum_counts_with_a_haircut(host: FakeMachine) -> None:
    host.write("/proc/meminfo", MEMINFO.replace("MemAvailable:   22493612", "MemAvailable:   12493612"))
    host.write("/proc/spl/kstat/zfs/arcstats", ARCSTATS)
    memory = probe_host(host.root)
    assert (memory.arc_bytes, memory.arc_max_bytes) == (3987654321 - 519094272, 8306343936)
    assert memory.usable_bytes == 12493612 * KIB + int((3987654321 - 519094272) * 0.8)
    assert memory.sources[-2:] == (
        "arc_bytes: /proc/spl/kstat/zfs/arcstats size 3987654321 - c_min 519094272",
        "usable_bytes: available_bytes + 80% of arc_bytes, which no control group limit lowers",
    )


def test_zfs_cache_never_makes_more_usable_than_there_is(host: FakeMachine) -> None:
    host.write("/proc/spl/kstat/zfs/arcstats", ARCSTATS)
    assert probe_host(host.root).usable_bytes == 24684084 * KIB


def test_zfs_cache_of_the_host_is_left_out_where_lxcfs_shows_a_containers_memory(host: FakeMachine) -> None:
    host.write("/proc/spl/kstat/zfs/arcstats", ARCSTATS)
    host.write("/proc/self/mountinfo", "88 60 0:50 /proc/meminfo /proc/meminfo rw - fuse.lxcfs lxcfs rw\n")
    memory = probe_host(host.root)
    assert (memory.arc_bytes, memory.usable_bytes) == (0, AVAILABLE)
    assert "host's cache" in memory.warnings[-1]


@pytest.mark.parametrize(
    "content", ["", "name type data\n", "size 4 lots\nc_min 4 3\n", "size 4 -3\nc_min 4 3\n", b"\xff"]
)
def test_malformed_zfs_figures_are_left_out_with_a_warning(host: FakeMachine, content: str | bytes) -> None:
    host.write("/proc/spl/kstat/zfs/arcstats", content)
    memory = probe_host(host.root)
    assert (memory.arc_bytes, memory.usable_bytes) == (0, AVAILABLE)
    assert memory.warnings == ("/proc/spl/kstat/zfs/arcstats: size or c_min not found",)


def test_huge_pages_are_told_and_not_usable(host: FakeMachine) -> None:
    pages = "HugePages_Total:    4096\nHugePages_Free:     1024\nHugepagesize:       2048 kB\n"
    host.write("/proc/meminfo", MEMINFO.replace("HugePages_Total:       0\n", pages))
    memory = probe_host(host.root)
    assert (memory.hugepages_bytes, memory.hugepages_free_bytes) == (8 * GIB, 2 * GIB)
    assert memory.usable_bytes == AVAILABLE


WINDOWS = {
    "total_bytes": 32 * GIB,
    "available_bytes": 20 * GIB,
    "commit_total_bytes": 40 * GIB,
    "commit_available_bytes": 12 * GIB,
}


def test_windows_never_hands_out_more_than_it_may_promise(machine: FakeMachine) -> None:
    clients = Clients(windows_memory=lambda: WINDOWS)
    memory = probe_host(Machine(machine.root, system="Windows", clients=clients))
    assert (memory.total_bytes, memory.available_bytes, memory.usable_bytes) == (32 * GIB, 20 * GIB, 12 * GIB)
    assert memory.sources[-1] == "usable_bytes: ullAvailPageFile: less may be promised than is free"


@given(content=st.binary(max_size=300))
def test_no_content_of_meminfo_raises(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    machine = FakeMachine(tmp_path_factory.mktemp("machine"))
    machine.write("/proc/meminfo", content)
    assert probe_host(machine.root).warnings


@given(
    total=st.integers(0, 2**40),
    available=st.integers(0, 2**40),
    limit=st.integers(0, 2**62),
    used=st.integers(0, 2**50),
    cache=st.integers(0, 2**50),
)
def test_usable_never_exceeds_available_nor_falls_below_zero(
    tmp_path_factory: pytest.TempPathFactory, total: int, available: int, limit: int, used: int, cache: int
) -> None:
    machine = FakeMachine(tmp_path_factory.mktemp("machine"))
    machine.write("/proc/meminfo", f"MemTotal: {total} kB\nMemAvailable: {available} kB\n")
    machine.write("/proc/self/cgroup", "0::/\n")
    machine.group_v2("/sys/fs/cgroup", max=limit, current=used, stat={"inactive_file": cache, "active_file": 0})
    memory = probe_host(machine.root)
    if memory.usable_bytes is not None:
        assert 0 <= memory.usable_bytes <= min(memory.available_bytes or limit, memory.total_bytes or limit)
        assert all(memory.usable_bytes <= (limit.available_bytes or 0) for limit in memory.limits)


def test_this_machine_agrees_with_its_meminfo() -> None:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        pytest.skip("no /proc/meminfo")
    lines = dict(line.split(":") for line in meminfo.read_text().splitlines())
    memory = probe_host()
    assert memory.total_bytes == int(lines["MemTotal"].split()[0]) * KIB
    assert memory.available_bytes is not None
    assert abs(memory.available_bytes - int(lines["MemAvailable"].split()[0]) * KIB) < 512 * MIB
    assert memory.usable_bytes is not None
    assert memory.usable_bytes <= memory.available_bytes
