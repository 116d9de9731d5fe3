from __future__ import annotations

import os
import subprocess
import sys

import psutil  # loaded before a test claims to be on another platform
import pytest
from fake_machine import KIB, MIB, FakeMachine
from hypothesis import given
from hypothesis import strategies as st

from probes import ProcessMemory, probe_process

ROLLUP = """\
563b1c4de000-7fffff090000 ---p 00000000 00:00 0                          [rollup]
Rss:              369276 kB
Pss:              366020 kB
Pss_Dirty:        112704 kB
Pss_Anon:         112704 kB
Pss_File:         253316 kB
Pss_Shmem:             0 kB
SwapPss:               0 kB
Locked:                0 kB
"""
STATUS = """\
Name:\tllama-server
State:\tS (sleeping)
VmPeak:\t  984308 kB
VmHWM:\t  369276 kB
VmRSS:\t  369276 kB
RssAnon:\t  112704 kB
RssFile:\t  256572 kB
RssShmem:\t       0 kB
VmSwap:\t      16 kB
"""
"""llama-server with Gemma 3 270M, measured; the last two lines of status are made up."""

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads this machine's /proc")


def test_sample_to_the_byte(machine: FakeMachine) -> None:
    machine.write("/proc/42/smaps_rollup", ROLLUP)
    machine.write("/proc/42/status", STATUS)
    assert probe_process(42, machine.root) == ProcessMemory(
        rss_bytes=369276 * KIB,
        anonymous_bytes=112704 * KIB,
        file_bytes=253316 * KIB,
        shared_bytes=0,
        swap_bytes=0,
        peak_rss_bytes=369276 * KIB,
        reasons=(),
    )


@pytest.mark.parametrize("unreadable", [True, False])
def test_without_smaps_rollup_status_answers_and_says_so(machine: FakeMachine, unreadable: bool) -> None:
    machine.write("/proc/42/status", STATUS)
    if unreadable:
        machine.make_unreadable("/proc/42/smaps_rollup")
    memory = probe_process(42, machine.root)
    assert memory is not None
    assert memory.anonymous_bytes == 112704 * KIB
    assert memory.file_bytes == 256572 * KIB
    assert memory.swap_bytes == 16 * KIB
    problem = "Is a directory" if unreadable else "not found, it came with Linux 4.14"
    assert memory.reasons[0] == f"/proc/42/smaps_rollup: {problem}"
    assert "file_bytes: RssFile of status" in memory.reasons


def test_inexact_reads_status_only(machine: FakeMachine) -> None:
    machine.write("/proc/42/smaps_rollup", ROLLUP)
    machine.write("/proc/42/status", STATUS)
    memory = probe_process(42, machine.root, exact=False)
    assert memory is not None
    assert memory.file_bytes == 256572 * KIB
    assert memory.reasons[0] == "rss_bytes: VmRSS of status"


def test_rollup_without_the_split_takes_it_from_status(machine: FakeMachine) -> None:
    """smaps_rollup of Linux 4.14 has Pss but not Pss_Anon."""
    machine.write("/proc/42/smaps_rollup", "Rss: 100 kB\nPss: 90 kB\nSwapPss: 1 kB\n")
    machine.write("/proc/42/status", STATUS)
    memory = probe_process(42, machine.root)
    assert memory is not None
    assert (memory.rss_bytes, memory.anonymous_bytes, memory.swap_bytes) == (100 * KIB, 112704 * KIB, KIB)
    assert memory.reasons == tuple(
        f"{field}: {name} of status"
        for field, name in [
            ("anonymous_bytes", "RssAnon"),
            ("file_bytes", "RssFile"),
            ("shared_bytes", "RssShmem"),
        ]
    )


def test_gone_and_zombie_are_none(machine: FakeMachine) -> None:
    assert probe_process(42, machine.root) is None
    machine.write("/proc/42/status", "Name:\tllama-server\nState:\tZ (zombie)\n")
    assert probe_process(42, machine.root) is None


def test_unreadable_and_empty_files_leave_every_figure_unknown_with_a_reason(machine: FakeMachine) -> None:
    machine.make_unreadable("/proc/42/status")
    machine.write("/proc/42/smaps_rollup", "")
    memory = probe_process(42, machine.root)
    assert memory is not None
    assert memory.rss_bytes is memory.anonymous_bytes is memory.peak_rss_bytes is None
    assert memory.reasons[0] == "/proc/42/status: Is a directory"
    assert "peak_rss_bytes: unknown, no VmHWM in status" in memory.reasons


@given(rollup=st.binary(max_size=200), status=st.binary(max_size=200))
def test_no_content_raises(tmp_path_factory: pytest.TempPathFactory, rollup: bytes, status: bytes) -> None:
    machine = FakeMachine(tmp_path_factory.mktemp("machine"))
    machine.write("/proc/42/smaps_rollup", rollup)
    machine.write("/proc/42/status", status)
    probe_process(42, machine.root)


def test_elsewhere_psutil_knows_the_resident_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    memory = probe_process(os.getpid())
    assert memory is not None
    assert memory.rss_bytes is not None
    assert memory.rss_bytes == pytest.approx(psutil.Process().memory_info().rss, abs=8 * MIB)
    assert memory.anonymous_bytes is None
    assert "peak_rss_bytes: unknown on this platform" in memory.reasons
    assert probe_process(2**22 + 1) is None


@linux_only
def test_this_process() -> None:
    memory = probe_process(os.getpid())
    assert memory is not None
    assert memory.reasons == ()
    assert memory.rss_bytes is not None
    assert memory.anonymous_bytes is not None
    assert memory.file_bytes is not None
    assert 5 * MIB < memory.anonymous_bytes < memory.rss_bytes
    assert memory.anonymous_bytes + memory.file_bytes <= memory.rss_bytes


@linux_only
def test_64_mib_that_a_child_touches_are_anonymous() -> None:
    script = """
import mmap, sys
print("ready", flush=True)
sys.stdin.readline()
block = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(0, len(block), 4096): block[page] = 1
print("touched", flush=True)
sys.stdin.readline()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        before = probe_process(child.pid)
        child.stdin.write("go\n")
        child.stdin.flush()
        assert child.stdout.readline() == "touched\n"
        after = probe_process(child.pid)
        child.stdin.close()
        child.stdout.read()
        assert before is not None
        assert after is not None
        assert before.anonymous_bytes is not None
        assert after.anonymous_bytes is not None
        assert abs(after.anonymous_bytes - before.anonymous_bytes - 64 * MIB) < MIB
    assert probe_process(child.pid) is None
