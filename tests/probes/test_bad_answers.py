"""Every file and answer of every machine, unreadable, empty and malformed: no probe raises, and the others go on."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_machines import MACHINES, build

from planner.hardware.assemble import assemble
from probes import Findings, Machine, Report, probe_everything

MALFORMED = ("", "\n", "\0", "-1\n", "99999999999999999999\n", "not a number\n", "a b c\n" * 3, ": : :\n\n::\n", "0x\n")
STRANGE: tuple[Any, ...] = (
    None,
    [],
    {},
    "",
    0,
    -1,
    True,
    {"devices": None},
    {"devices": [None, 1, {}]},
    [{"regions": 1}],
)


def findings_of(report: Report) -> Findings:
    return probe_everything(Machine.replay(report))


def assert_sound(findings: Findings) -> None:
    """Whatever was read: pools that make sense."""
    for pool in assemble(findings).pools:
        if pool.total_bytes is not None and pool.usable_bytes is not None:
            assert 0 <= pool.usable_bytes <= pool.total_bytes


@pytest.fixture(params=MACHINES)
def report(request: pytest.FixtureRequest, tmp_path: Path) -> Report:
    """All that is read of one machine."""
    machine = build(request.param, tmp_path)
    probe_everything(machine)
    return machine.report


def test_a_file_that_cannot_be_read_is_a_warning_and_costs_no_other_probe(report: Report) -> None:
    sound = findings_of(report)
    for path in report.files:
        files = {name: text for name, text in report.files.items() if name != path}
        findings = findings_of(replace(report, files=files, failures={**report.failures, path: "Permission denied"}))
        assert_sound(findings)
        told = assemble(findings).warnings
        assert any("Permission denied" in warning for warning in told), path
        if not path.startswith(("/proc/meminfo", "/proc/self", "/sys/fs", "/proc/spl")):
            assert findings.host == sound.host, path
        if not path.startswith(("/proc/cpuinfo", "/proc/self", "/proc/device-tree")):
            assert findings.cpu == sound.cpu, path


def test_malformed_files_never_raise(report: Report) -> None:
    for path in report.files:
        for content in MALFORMED:
            assert_sound(findings_of(replace(report, files={**report.files, path: content})))


def test_folders_and_links_that_lead_nowhere_never_raise(report: Report) -> None:
    for path in report.folders:
        for names in ((), ("", "..", "card", "card99"), ("tile0", "renderD", "renderDx")):
            assert_sound(findings_of(replace(report, folders={**report.folders, path: names})))
    for path in report.links:
        assert_sound(findings_of(replace(report, links={**report.links, path: "\n"})))


def test_strange_answers_never_raise(report: Report) -> None:
    for name, answer in report.answers.items():
        for strange in STRANGE:
            assert_sound(findings_of(replace(report, answers={**report.answers, name: strange})))
        for changed in _with_each_part_replaced(answer):
            assert_sound(findings_of(replace(report, answers={**report.answers, name: changed})))


def _with_each_part_replaced(answer: Any) -> Iterator[Any]:
    for path in _paths(answer):
        for strange in STRANGE:
            changed = copy.deepcopy(answer)
            parent = changed
            for key in path[:-1]:
                parent = parent[key]
            parent[path[-1]] = strange
            yield changed


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield (*path, key)
        yield from _paths(entry, (*path, key))


def test_answers_that_fail_are_warnings(report: Report) -> None:
    for name in report.answers:
        answers = {other: answer for other, answer in report.answers.items() if other != name}
        findings = findings_of(replace(report, answers=answers, failures={**report.failures, name: "went away"}))
        assert_sound(findings)
        assert any("went away" in warning for warning in assemble(findings).warnings), name


PATHS = (
    "/proc/meminfo /proc/cpuinfo /proc/self/status /proc/self/cgroup /proc/self/mountinfo /sys/fs/cgroup/memory.max "
    "/proc/spl/kstat/zfs/arcstats /sys/class/drm/card0/device/vendor /sys/class/drm/card0/device/mem_info_vram_total "
    "/sys/class/drm/card0/device/mem_info_gtt_total /sys/class/kfd/kfd/topology/nodes/1/properties "
    "/sys/module/ttm/parameters/pages_limit /proc/device-tree/model /sys/fs/cgroup/memory.stat"
).split()


@settings(max_examples=200, deadline=None)
@given(files=st.dictionaries(st.sampled_from(PATHS), st.one_of(st.text(max_size=80), st.sampled_from(MALFORMED))))
def test_no_combination_of_files_raises(files: dict[str, str]) -> None:
    report = Report(
        system="Linux",
        architecture="x86_64",
        files=files,
        folders={"/sys/class/drm": ("card0",), "/sys/class/kfd/kfd/topology/nodes": ("1",)},
        links={"/sys/class/drm/card0/device": "0000:03:00.0", "/sys/class/drm/card0/device/driver": "amdgpu"},
    )
    assert_sound(findings_of(report))
