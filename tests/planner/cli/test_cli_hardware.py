"""`planner hardware`, and plans for machines that are not this one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_engines import write_engine
from planner_process import Planner
from sample_machines import MACHINES, build
from samples import assert_sizes_are_named

from planner.cli.hardware import _document
from planner.cli.hardware_page import Seen, render_page
from planner.engine.find import parse_devices
from planner.hardware.assemble import assemble
from planner.hardware.replay import replay
from planner.units import GIB, MIB
from probes import probe_everything

Fails = Callable[..., str]


def report_of(name: str, folder: Path) -> Path:
    """The raw report of a machine, in a file."""
    machine = build(name, folder)
    probe_everything(machine)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(machine.report.to_document()))
    return path


def test_the_page_tells_of_this_machine(planner: Planner) -> None:
    result = planner("hardware")
    assert (result.returncode, result.stderr) == (0, "")
    assert "Memory      █ in use  ░ usable now\n  RAM       [" in result.stdout
    assert "usable of" in result.stdout
    assert "Engine      llama-server " in result.stdout


def test_the_full_report_replays_the_same_page(planner: Planner, tmp_path: Path) -> None:
    full = planner("hardware", "--json")
    assert (full.returncode, full.stderr) == (0, "")
    document = json.loads(full.stdout)
    assert document["schema_version"] == 1
    assert document["engine"]["version"].startswith("llama-server ")
    assert document["hardware"]["pools"][-1]["name"] == "host"
    assert_sizes_are_named(document)
    path = tmp_path / "report.json"
    path.write_text(full.stdout)
    again = planner("hardware", "--from", path, "--json")
    assert json.loads(again.stdout) == document
    assert planner("hardware", "--from", path).stdout.startswith(document["system"]["system"] or "")


def test_a_page_of_another_machine(planner: Planner, tmp_path: Path) -> None:
    page = planner("hardware", "--from", report_of("rtx_4090", tmp_path)).stdout
    assert "  CUDA0     [██░░░░░░░░░░░░░░░░░░░░░░░░░░░░]  22.8 GiB usable of 24.0 GiB" in page
    assert "Your desktop (gnome-shell, Xorg) holds 701.0 MiB." in page
    assert "No engine was asked when this report was made." in page


@pytest.mark.skipif(sys.platform == "win32", reason="the engine is a shell script")
def test_an_engine_is_asked_for_its_view_and_its_addresses_stay_here(planner: Planner, tmp_path: Path) -> None:
    listed = ["RPC0: 10.1.2.3:50052 (16000 MiB, 15000 MiB free)"]
    engine = write_engine(tmp_path / "llama-server", devices=listed)
    page = planner("hardware", "--engine", engine).stdout
    assert "RPC0      nothing                   14.6 GiB of 15.6 GiB" in page
    assert "10.1.2.3:50052" in page
    assert "Engine      llama-server 4711 (0abc123) with RPC, CPU: 1 device and the processor." in page
    text = planner("hardware", "--engine", engine, "--json").stdout
    assert "10.1.2.3" not in text
    assert json.loads(text)["engine"]["backends"] == ["RPC", "CPU"]
    assert json.loads(text)["engine"]["devices"][0]["free_bytes"] == 15000 * MIB


def test_without_an_engine_the_page_says_why(planner: Planner) -> None:
    result = planner("hardware", embedded=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Engine      No llama-server is found" in result.stdout
    assert json.loads(planner("hardware", "--json", embedded=False).stdout)["engine"] is None


def test_an_engine_that_is_named_has_to_run(fails: Fails, tmp_path: Path) -> None:
    assert "There is no llama-server at" in fails(1, "hardware", "--engine", tmp_path / "none")


@pytest.mark.parametrize("name", ["nested_groups", "rtx_4090", "version_1"])
def test_the_full_report_names_nothing_of_a_persons(name: str, tmp_path: Path) -> None:
    machine = build(name, tmp_path)
    live = assemble(probe_everything(machine))
    report = machine.report.to_document()
    seen = Seen(system_view=live, report=report, engine_name=None, engine_devices=None)
    text = json.dumps(_document(seen))
    for secret in ("llama-of-jane", "my-own-game", "0123456789abcdef"):
        assert secret not in text


STRIX_HALO = """\
NUCBOX_EVO-X2, Linux
AMD RYZEN AI MAX+ 395 w/ Radeon 8060S, 4 threads
Computes with AVX2 FMA AVX-512 AVX512-VNNI

Memory      █ in use  ░ usable now
  RAM       [█░░░░░░░░░░░░░░░░░░░░░░░░░░░░░]  120.7 GiB usable of 127.0 GiB
            One memory for programs and graphics
            Of it programs up to 25.0 GiB and Vulkan0 up to 110.4 GiB.

Graphics    the system says           llama-server says
  Vulkan0   111.2 GiB of 111.5 GiB    110.4 GiB of 111.5 GiB
            AMD Radeon 8060S (Strix Halo) at 0000:c5:00.0
            Vulkan adds what firmware set aside and what is shared (GTT).

Engine      llama-server b11434: 1 device and the processor.

What limits it, and what would change that
  - The driver may hand out 15.5 GiB of the machine's memory (GTT).
    > ttm.pages_limit on the kernel's command line; 29119654 would allow 111.1
      GiB
  - Firmware set 96.0 GiB aside for graphics: programs cannot use it.
    > the BIOS (UMA frame buffer, or dedicated graphics memory): the least is
      best on Linux

Worth knowing
  ! 96.0 GiB belong to graphics alone, and ROCm then uses nothing else. Set the
    least in the BIOS and raise ttm.pages_limit: all memory is then there for
    both."""


def page_with_engine(name: str, devices: str, folder: Path) -> str:
    report = json.loads(report_of(name, folder).read_text())
    return render_page(
        Seen(
            system_view=replay(report).system_view,
            report=report,
            engine_name="llama-server b11434",
            engine_devices=parse_devices(devices),
        )
    )


def test_both_views_limits_and_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = "  Vulkan0: AMD Radeon Graphics (RADV GFX1151) (114151 MiB, 113000 MiB free)"
    assert page_with_engine("strix_halo_96", listed, tmp_path) == STRIX_HALO


REPORTS = sorted((Path(__file__).parents[2] / "data" / "reports").glob("*.json"))


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)
def test_reports_of_people_make_the_page_beside_them(planner: Planner, report: Path) -> None:
    """A machine that was seen wrongly: its report, and the page as it has to be."""
    assert planner("hardware", "--from", report).stdout == report.with_suffix(".txt").read_text()


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("name", MACHINES)
def test_every_page_keeps_to_the_terminal(
    name: str, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    page = page_with_engine(name, "  (none)", tmp_path)
    figures = [line for line in page.splitlines() if "[" in line or "Graphics" in line]
    for line in page.splitlines():
        # A row of figures and a word that cannot be broken may be longer than a narrow terminal.
        assert len(line) <= max(columns, 80) or line in figures
        assert line == line.rstrip()


_WITH_DEVICE = """{"report": {"report_version": 1}, "engine": {"devices": [
    {"name": "CUDA0", "description": "x", "total_bytes": %s, "free_bytes": %s}]}}"""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is no JSON document"),
        ("[]", "This is no report of a machine: it has no report_version"),
        ("{}", "Make one with `python -m probes --json` or `planner hardware --json`"),
        ('{"report_version": 99}', "its report_version is 99"),
        ('{"report": {"report_version": 1}, "engine": {"devices": [{}]}}', "list of the engine's devices"),
        (_WITH_DEVICE % (1 << 30, -1), "list of the engine's devices"),
        (_WITH_DEVICE % ("1e400", 0), "is no JSON document"),
        (_WITH_DEVICE % ("NaN", 0), "is no JSON document"),
    ],
)
def test_what_is_no_report_is_said(fails: Fails, tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(content)
    assert said in fails(1, "hardware", "--from", path)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no /dev/zero")
def test_a_report_without_end_is_not_read_for_ever(fails: Fails) -> None:
    """The size that the system tells of a device or a pipe is none."""
    assert "is too large for a report" in fails(1, "hardware", "--from", "/dev/zero")


def test_a_report_that_is_not_there(fails: Fails, tmp_path: Path) -> None:
    assert "cannot be read: No such file" in fails(1, "hardware", "--from", tmp_path / "none.json")


def test_another_machine_has_no_engine_to_ask(fails: Fails, tmp_path: Path) -> None:
    assert "use one" in fails(2, "hardware", "--from", tmp_path / "x", "--engine", "y")


# plan


def test_a_plan_for_the_machine_of_a_report(planner: Planner, gemma_path: Path, tmp_path: Path) -> None:
    path = report_of("two_cards", tmp_path)
    result = planner("plan", gemma_path, "--context", 4096, "--hardware", path, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert [pool["usable_bytes"] for pool in document["hardware"]["pools"]] == [
        25769803776 - 305 * MIB,
        12884901888 - 210 * MIB,
        30000000 << 10,
    ]
    assert [device["name"] for device in document["devices"]] == ["CUDA0", "CUDA1", "CPU"]


def test_a_plan_uses_what_the_engine_of_a_report_listed(planner: Planner, gemma_path: Path, tmp_path: Path) -> None:
    report = json.loads(report_of("two_cards", tmp_path).read_text())
    path = tmp_path / "full.json"
    path.write_text(json.dumps({"report": report, "engine": {"version": "x", "devices": []}}))
    document = json.loads(planner("plan", gemma_path, "--context", 4096, "--hardware", path, "--json").stdout)
    assert [device["name"] for device in document["devices"]] == ["CPU"]


@pytest.mark.parametrize(
    ("words", "names", "usable"),
    [
        ("--machine|rtx 3060|--ram|16G", ["CUDA0", "CPU"], [12 * GIB - 512 * MIB, 16 * GIB]),
        ("--machine|n100", ["CPU"], [14 * GIB]),
        ("--machine|mac mini 16", ["MTL0", "CPU"], [14 * GIB]),
        ("--unified|96G", ["Vulkan0", "CPU"], [96 * GIB]),
    ],
)
def test_a_plan_for_a_machine_by_name(
    planner: Planner, gemma_path: Path, words: str, names: list[str], usable: list[int]
) -> None:
    result = planner("plan", gemma_path, "--context", 4096, *words.split("|"), "--json")
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert [pool["usable_bytes"] for pool in document["hardware"]["pools"]] == usable
    assert [device["name"] for device in document["devices"]] == names


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--machine|n100|--vram|8G", "--ram or --vram and --machine each describe a machine. Use one."),
        ("--machine|n100|--unified|8G", "--unified and --machine each describe a machine. Use one."),
        ("--machine|toaster", "'toaster' is no machine known here"),
        ("--unified|lots", "'lots' is not a size"),
        ("--machine|n100|--engine|x", "--machine describes another"),
        ("--machine|rtx 3060|--ram|8G|--dry-run", "--ram and --machine describe another"),
    ],
)
def test_machines_that_make_no_sense(fails: Fails, gemma_path: Path, words: str, said: str) -> None:
    assert said in fails(2, "plan", gemma_path, "--context", 4096, *words.split("|"))
