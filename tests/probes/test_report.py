from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_machine import GIB, FakeMachine
from sample_machines import MACHINES, build, cpuinfo, docker, linux, nested_groups

from probes import Machine, Report, probe_everything, probe_host


@pytest.mark.parametrize("name", MACHINES)
def test_a_report_survives_json_and_holds_nothing_private(name: str, tmp_path: Path) -> None:
    machine = build(name, tmp_path)
    probe_everything(machine)
    text = json.dumps(machine.report.to_document())
    again = Report.from_document(json.loads(text))
    assert Report.from_document(json.loads(json.dumps(again.to_document()))) == again
    for secret in ("12345", "llama-of-jane", "my-own-game", "0123456789abcdef", str(tmp_path)):
        assert secret not in text


def test_a_replayed_machine_looks_at_nothing_else(tmp_path: Path) -> None:
    machine = docker(FakeMachine(tmp_path))
    live = probe_everything(machine)
    report = machine.report
    for file in tmp_path.rglob("memory.*"):
        file.unlink()
    assert probe_everything(Machine.replay(report)) == live
    assert Machine.replay(report).report is report


def test_names_of_groups_are_replaced_alike_everywhere(tmp_path: Path) -> None:
    machine = nested_groups(FakeMachine(tmp_path))
    host = probe_everything(machine).host
    document = machine.report.to_document()
    replayed = probe_host(Machine.replay(Report.from_document(document)))
    assert [limit.limit_bytes for limit in replayed.limits] == [limit.limit_bytes for limit in host.limits]
    assert replayed.limits[0].source == "/sys/fs/cgroup/user.slice/app.slice/group-1/memory.max"


def test_what_made_a_group_can_still_be_told(tmp_path: Path) -> None:
    machine = linux(FakeMachine(tmp_path), total_kib=8000000, available_kib=7000000)
    FakeMachine(tmp_path).write("/proc/self/cgroup", "0::/system.slice/docker-4f5e6d7c8b9a.scope\n")
    assert probe_everything(machine).place.container == "docker"
    document = machine.report.to_document()
    assert document["files"]["/proc/self/cgroup"] == "0::/system.slice/docker-group-1\n"
    assert probe_everything(Machine.replay(Report.from_document(document))).place.container == "docker"


def test_homes_addresses_and_identifiers_are_replaced() -> None:
    text = (
        "/home/jane/x C:\\Users\\jane\\y 192.168.1.7 00:1a:2b:3c:4d:5e 6ba7b810-9dad-11d1-80b4-00c04fd430c8 127.0.0.1"
    )
    report = Report(system="Linux", architecture="x86_64", files={"/f": text})
    kept = report.to_document()["files"]["/f"]
    zero = "00000000-0000-0000-0000-000000000000"
    assert kept == f"/home/someone/x C:\\Users\\someone\\y 192.0.2.1 00:00:00:00:00:00 {zero} 127.0.0.1"


def test_a_serial_number_is_not_even_read(tmp_path: Path) -> None:
    machine = linux(FakeMachine(tmp_path), total_kib=8000000, available_kib=7000000)
    assert "serial" in cpuinfo("x", "avx")
    probe_everything(machine)
    assert "serial" not in machine.report.files["/proc/cpuinfo"]


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (None, "it has no report_version"),
        ([], "it has no report_version"),
        ({}, "it has no report_version"),
        ({"report_version": 99}, "its report_version is 99, and 1 is known"),
        ({"report_version": 1, "system": 7}, "its system is no text"),
        ({"report_version": 1, "files": []}, "its files are no mapping"),
        ({"report_version": 1, "files": {"/a": 1}}, "its files are not all text"),
        ({"report_version": 1, "folders": {"/a": "b"}}, "its folders are not all lists of names"),
        ({"report_version": 1, "folders": {"/a": [1]}}, "its folders are not all lists of names"),
    ],
)
def test_what_is_no_report_says_why(document: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Report.from_document(document)


def test_a_report_of_nothing_is_a_machine_of_unknowns() -> None:
    findings = probe_everything(Machine.replay(Report.from_document({"report_version": 1, "system": "Linux"})))
    assert (findings.host.total_bytes, findings.gpus) == (None, ())
    assert findings.host.warnings


def test_this_machine_prints_its_report_and_a_report_of_it_agrees() -> None:
    output = subprocess.run([sys.executable, "-m", "probes", "--json"], capture_output=True, text=True, check=True)
    replayed = probe_everything(Machine.replay(Report.from_document(json.loads(output.stdout))))
    here = probe_everything()
    assert replayed.host.total_bytes == here.host.total_bytes
    assert abs((replayed.host.usable_bytes or 0) - (here.host.usable_bytes or 0)) < 4 * GIB
    assert replayed.cpu == here.cpu
    short = subprocess.run([sys.executable, "-m", "probes"], capture_output=True, text=True, check=True)
    assert f"memory: {here.host.total_bytes} bytes" in short.stdout
