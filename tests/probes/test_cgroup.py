from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_machine import GIB, MIB, FakeMachine
from hypothesis import given
from hypothesis import strategies as st

from probes import MemoryLimit, probe_cpu_quota, probe_limits

V1_UNLIMITED = 9223372036854771712
NO_CACHE = {"inactive_file": 0, "active_file": 0}
NO_CACHE_V1 = {"total_inactive_file": 0, "total_active_file": 0}

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"


def test_limit_counts_neither_list_of_page_cache_as_used() -> None:
    limit = MemoryLimit(source="x", limit_bytes=1000, used_bytes=700, reclaimable_bytes=250)
    assert limit.available_bytes == 550


def test_no_cgroups_no_limits(machine: FakeMachine) -> None:
    assert probe_limits(machine.root) == ((), ())


def test_docker_with_a_private_namespace(machine: FakeMachine) -> None:
    machine.write("/proc/self/cgroup", "0::/\n")
    machine.write("/proc/self/mountinfo", V2_MOUNT)
    stat = {"anon": 900 * MIB, "file": 600 * MIB, "inactive_file": 400 * MIB, "active_file": 150 * MIB}
    machine.group_v2("/sys/fs/cgroup", max=4 * GIB, current=1500 * MIB, stat=stat)
    limits, warnings = probe_limits(machine.root)
    assert warnings == ()
    assert limits == (
        MemoryLimit(
            source="/sys/fs/cgroup/memory.max",
            limit_bytes=4 * GIB,
            used_bytes=1500 * MIB,
            reclaimable_bytes=550 * MIB,
        ),
    )
    assert limits[0].available_bytes == 4 * GIB - 950 * MIB


def test_every_ancestor_binds_and_the_tightest_is_in_the_middle(machine: FakeMachine) -> None:
    machine.write("/proc/self/cgroup", "0::/user.slice/app.slice/llama.service\n")
    machine.write("/proc/self/mountinfo", V2_MOUNT)
    top = "/sys/fs/cgroup/user.slice"
    machine.group_v2(f"{top}/app.slice/llama.service", max=12 * GIB, current=1 * GIB, stat=NO_CACHE)
    machine.group_v2(f"{top}/app.slice", max=8 * GIB, current=6 * GIB, stat=NO_CACHE)
    machine.group_v2(top, max="max", current=7 * GIB, stat=NO_CACHE)
    limits, warnings = probe_limits(machine.root)
    assert warnings == ()
    assert [limit.source for limit in limits] == [
        f"{top}/app.slice/llama.service/memory.max",
        f"{top}/app.slice/memory.max",
    ]
    assert min(limit.available_bytes or 0 for limit in limits) == 2 * GIB


def test_memory_high_binds_like_memory_max(machine: FakeMachine) -> None:
    machine.write("/proc/self/cgroup", "0::/a\n")
    machine.group_v2("/sys/fs/cgroup/a", max=8 * GIB, high=5 * GIB, current=1 * GIB, stat=NO_CACHE)
    limits, _ = probe_limits(machine.root)
    assert [(limit.source, limit.available_bytes) for limit in limits] == [
        ("/sys/fs/cgroup/a/memory.max", 7 * GIB),
        ("/sys/fs/cgroup/a/memory.high", 4 * GIB),
    ]


def test_version_1_limit_uses_the_totals_of_the_subtree(machine: FakeMachine) -> None:
    machine.write("/proc/self/cgroup", "5:devices:/\n4:cpu,memory:/docker/abc\n")
    machine.write("/proc/self/mountinfo", V1_MOUNT)
    stat = {
        "inactive_file": 1,
        "active_file": 2,
        "total_inactive_file": 300 * MIB,
        "total_active_file": 200 * MIB,
    }
    machine.group_v1("/sys/fs/cgroup/memory/docker/abc", limit=2 * GIB, usage=1 * GIB, stat=stat)
    machine.group_v1("/sys/fs/cgroup/memory/docker", limit=V1_UNLIMITED, usage=1 * GIB, stat=stat)
    machine.group_v1("/sys/fs/cgroup/memory", limit=V1_UNLIMITED, usage=3 * GIB, stat=stat)
    limits, warnings = probe_limits(machine.root)
    assert warnings == ()
    assert [(limit.source, limit.available_bytes) for limit in limits] == [
        ("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", 1 * GIB + 500 * MIB)
    ]


def test_hybrid_machine_checks_version_1_first_and_then_version_2(machine: FakeMachine) -> None:
    machine.write("/proc/self/cgroup", "0::/b\n4:memory:/a\n1:name=systemd:/a\n")
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
    machine.write("/proc/self/mountinfo", V1_MOUNT + unified)
    machine.group_v1("/sys/fs/cgroup/memory/a", limit=6 * GIB, usage=1 * GIB, stat=NO_CACHE_V1)
    machine.group_v2("/sys/fs/cgroup/unified/b", max=5 * GIB, current=1 * GIB, stat=NO_CACHE)
    limits, warnings = probe_limits(machine.root)
    assert warnings == ()
    assert [(limit.source, limit.available_bytes) for limit in limits] == [
        ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", 5 * GIB),
        ("/sys/fs/cgroup/unified/b/memory.max", 4 * GIB),
    ]


def test_unlimited_is_no_limit(machine: FakeMachine) -> None:
    machine.write("/proc/self/cgroup", "4:memory:/a\n0::/a\n")
    machine.group_v1("/sys/fs/cgroup/memory/a", limit=V1_UNLIMITED, usage=GIB, stat=NO_CACHE_V1)
    machine.group_v1("/sys/fs/cgroup/memory", limit=0x7FFFFFFFFFFF0000, usage=GIB, stat=NO_CACHE_V1)
    machine.group_v2("/sys/fs/cgroup/a", max="max", high="max", current=GIB, stat=NO_CACHE)
    assert probe_limits(machine.root) == ((), ())


def test_limit_above_the_machines_memory_is_none_but_one_that_equals_it_stays(machine: FakeMachine) -> None:
    machine.write("/proc/self/cgroup", "0::/\n")
    machine.group_v2("/sys/fs/cgroup", max=8 * GIB, current=GIB, stat=NO_CACHE)
    assert probe_limits(machine.root, total_bytes=8 * GIB - 1) == ((), ())
    assert len(probe_limits(machine.root, total_bytes=8 * GIB)[0]) == 1


def test_mount_elsewhere_with_a_space_in_its_name(machine: FakeMachine) -> None:
    machine.write("/proc/self/cgroup", "0::/a\n")
    machine.write("/proc/self/mountinfo", "30 23 0:26 / /my\\040groups rw shared:9 master:1 - cgroup2 none rw\n")
    machine.group_v2("/my groups/a", max=GIB, current=0, stat=NO_CACHE)
    assert [limit.source for limit in probe_limits(machine.root)[0]] == ["/my groups/a/memory.max"]


def test_mount_that_shows_only_the_containers_group_has_its_root_stripped(machine: FakeMachine) -> None:
    machine.write("/proc/self/cgroup", "4:memory:/docker/abc/inner\n")
    mount = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    machine.write("/proc/self/mountinfo", mount)
    machine.group_v1("/sys/fs/cgroup/memory/inner", limit=3 * GIB, usage=0, stat=NO_CACHE_V1)
    machine.group_v1("/sys/fs/cgroup/memory", limit=2 * GIB, usage=0, stat=NO_CACHE_V1)
    limits, warnings = probe_limits(machine.root)
    assert warnings == ()
    assert [limit.limit_bytes for limit in limits] == [3 * GIB, 2 * GIB]


def test_of_several_mounts_the_one_that_shows_most_ancestors_is_read(machine: FakeMachine) -> None:
    machine.write("/proc/self/cgroup", "0::/pod/box\n")
    inner = "30 23 0:26 /pod/box /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    machine.write("/proc/self/mountinfo", inner + "31 23 0:26 / /host/cgroup ro - cgroup2 cgroup2 rw\n")
    machine.group_v2("/host/cgroup/pod", max=GIB, current=0, stat=NO_CACHE)
    assert [limit.source for limit in probe_limits(machine.root)[0]] == ["/host/cgroup/pod/memory.max"]


@pytest.mark.parametrize(("path", "mount_root"), [("/../other", "/"), ("/", "/../.."), ("/a", "/b")])
def test_group_outside_of_the_mount_leaves_the_mount_point_and_a_warning(
    machine: FakeMachine, path: str, mount_root: str
) -> None:
    machine.write("/proc/self/cgroup", f"0::{path}\n")
    machine.write("/proc/self/mountinfo", V2_MOUNT.replace(" / ", f" {mount_root} "))
    machine.group_v2("/sys/fs/cgroup", max=GIB, current=0, stat=NO_CACHE)
    limits, warnings = probe_limits(machine.root)
    assert [limit.source for limit in limits] == ["/sys/fs/cgroup/memory.max"]
    assert len(warnings) == 1


def test_group_that_is_not_visible_leaves_its_visible_ancestors(machine: FakeMachine) -> None:
    """Docker on version 1 without mountinfo: the container's path is the host's, its files are at the top."""
    machine.write("/proc/self/cgroup", "4:memory:/docker/abc\n")
    machine.group_v1("/sys/fs/cgroup/memory", limit=GIB, usage=0, stat=NO_CACHE_V1)
    assert [limit.limit_bytes for limit in probe_limits(machine.root)[0]] == [GIB]


@pytest.mark.parametrize("content", ["", "lots\n", "-1\n", "1e9\n", "12 34\n", b"\xff\xff"])
def test_limit_that_is_none_is_skipped_with_a_warning(machine: FakeMachine, content: str | bytes) -> None:
    machine.write("/proc/self/cgroup", "0::/a\n")
    machine.group_v2("/sys/fs/cgroup", max=GIB, current=0, stat=NO_CACHE)
    machine.write("/sys/fs/cgroup/a/memory.max", content)
    limits, warnings = probe_limits(machine.root)
    assert [limit.source for limit in limits] == ["/sys/fs/cgroup/memory.max"]
    assert len(warnings) == 1
    assert warnings[0].startswith("/sys/fs/cgroup/a/memory.max: not a limit: ")


def test_unreadable_files_are_warnings(machine: FakeMachine) -> None:
    machine.write("/proc/self/cgroup", "0::/a\n")
    machine.group_v2("/sys/fs/cgroup", max=GIB, current=0, stat=NO_CACHE)
    machine.make_unreadable("/sys/fs/cgroup/a/memory.max")
    machine.make_unreadable("/proc/self/mountinfo")
    limits, warnings = probe_limits(machine.root)
    assert len(limits) == 1
    assert warnings == ("/proc/self/mountinfo: Is a directory", "/sys/fs/cgroup/a/memory.max: Is a directory")


def test_without_memory_stat_all_cache_counts_as_used(machine: FakeMachine) -> None:
    machine.write("/proc/self/cgroup", "0::/\n")
    machine.write("/sys/fs/cgroup/memory.max", f"{2 * GIB}")
    machine.write("/sys/fs/cgroup/memory.current", f"{GIB}")
    limits, warnings = probe_limits(machine.root)
    assert limits[0].available_bytes == GIB
    assert warnings == ("/sys/fs/cgroup/memory.stat: lacks inactive_file or active_file, so cache is counted as used",)


def test_cache_never_exceeds_use(machine: FakeMachine) -> None:
    """The two files are read one after the other, so that they may disagree."""
    machine.write("/proc/self/cgroup", "0::/\n")
    machine.group_v2("/sys/fs/cgroup", max=GIB, current=5, stat={"inactive_file": 4, "active_file": 3})
    assert probe_limits(machine.root)[0][0].available_bytes == GIB


def test_strange_lines_are_warnings_and_the_rest_counts(machine: FakeMachine) -> None:
    machine.write("/proc/self/cgroup", "what is this\n0::/\n")
    machine.write("/proc/self/mountinfo", "short\n\n1 2 3 4 5 - cgroup2\n")
    machine.group_v2("/sys/fs/cgroup", max=GIB, current=0, stat=NO_CACHE)
    limits, warnings = probe_limits(machine.root)
    assert len(limits) == 1
    assert len(warnings) == 2


@given(
    cgroup=st.binary(max_size=60) | st.from_regex(rb"0::/[a-z./]{0,9}\n", fullmatch=True),
    mountinfo=st.binary(max_size=120) | st.just(V2_MOUNT.encode()),
    limit=st.binary(max_size=30),
    current=st.binary(max_size=30),
    stat=st.binary(max_size=60),
)
def test_no_content_raises(
    tmp_path_factory: pytest.TempPathFactory,
    cgroup: bytes,
    mountinfo: bytes,
    limit: bytes,
    current: bytes,
    stat: bytes,
) -> None:
    machine = FakeMachine(tmp_path_factory.mktemp("machine"))
    machine.write("/proc/self/cgroup", cgroup)
    machine.write("/proc/self/mountinfo", mountinfo)
    for name, content in {"max": limit, "high": b"5", "current": current, "stat": stat}.items():
        machine.write(f"/sys/fs/cgroup/memory.{name}", content)
    machine.write("/sys/fs/cgroup/cpu.max", limit)
    limits, _ = probe_limits(machine.root)
    assert all((limit.available_bytes or 0) >= 0 for limit in limits)
    probe_cpu_quota(machine.root)


@pytest.mark.parametrize(
    ("leaf", "top", "cores"),
    [
        ("150000 100000", "max 100000", 1.5),
        ("max 100000", "50000 100000", 0.5),
        ("max 100000", "max 100000", None),
    ],
)
def test_cpu_quota_of_version_2(machine: FakeMachine, leaf: str, top: str, cores: float | None) -> None:
    machine.write("/proc/self/cgroup", "0::/a\n")
    machine.write("/sys/fs/cgroup/a/cpu.max", f"{leaf}\n")
    machine.write("/sys/fs/cgroup/cpu.max", f"{top}\n")
    assert probe_cpu_quota(machine.root) == (cores, ())


@pytest.mark.parametrize(("quota", "cores"), [("200000", 2.0), ("-1", None)])
def test_cpu_quota_of_version_1(machine: FakeMachine, quota: str, cores: float | None) -> None:
    machine.write("/proc/self/cgroup", "2:cpu,cpuacct:/a\n")
    machine.write("/proc/self/mountinfo", V1_MOUNT.replace("memory", "cpu,cpuacct"))
    machine.write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", f"{quota}\n")
    machine.write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n")
    assert probe_cpu_quota(machine.root) == (cores, ())


def test_strange_cpu_quota_is_a_warning(machine: FakeMachine) -> None:
    machine.write("/proc/self/cgroup", "0::/\n")
    machine.write("/sys/fs/cgroup/cpu.max", "5 0\n")
    cores, warnings = probe_cpu_quota(machine.root)
    assert cores is None
    assert len(warnings) == 1


def test_a_real_group_of_this_machine_with_a_real_limit() -> None:
    """A child is put into a group of its own, and its limit is read by hand and by the probe."""
    lines = dict(line.split(":")[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()[:-1])
    parent = Path(f"/sys/fs/cgroup/memory{lines.get('memory', '/none')}")
    group = parent / f"planner-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(512 * MIB))
    except OSError as error:
        pytest.skip(f"no version 1 group can be made here: {error.strerror}")
    script = "import json, probes; print(json.dumps([l.limit_bytes for l in probes.probe_host().limits]))"
    join = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n"
    try:
        command = [sys.executable, "-c", f"{join}{script}"]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert json.loads(output)[0] == int((group / "memory.limit_in_bytes").read_text())
    finally:
        group.rmdir()


def test_the_limits_of_this_machine_are_those_that_its_files_state() -> None:
    limits, warnings = probe_limits()
    assert not any("not a limit" in warning for warning in warnings)
    for limit in limits:
        assert limit.limit_bytes == int(Path(limit.source).read_text())
