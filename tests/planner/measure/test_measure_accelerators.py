"""What a server holds on accelerators while it runs, on machines that are made up, and a run that is ended for one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_machine import GIB, KIB, MIB, FakeMachine
from fake_nvml import FakeCard, FakeNvml, FakeProcess, memory
from sample_machines import build, fdinfo

from planner import Hardware, Launch, MemoryPlan, Model, predict
from planner.campaign import run_campaign
from planner.cli.render_history import render_kept
from planner.cli.render_run import render_run
from planner.engine.faults import EngineFault
from planner.engine.find import Engine, parse_devices
from planner.engine.log import read_log
from planner.hardware.assemble import assemble
from planner.measure import Limits, Progress, measure
from planner.measure import accelerators as accelerators_module
from planner.measure import run as run_module
from planner.measure.accelerators import Accelerators, watched_devices
from planner.measure.guard import WatchedDevice, floor_of
from planner.measure.measurement import DeviceSample
from planner.reconcile.record import Record
from probes import Machine, probe_everything

SMALL = replace(Launch.for_users(2, 256, cache_type="q8_0"), ubatch_size=64)
PID = 4242


def plan_on(machine: Machine, listed: str, model: Model) -> MemoryPlan:
    """A plan for a machine whose engine lists these devices."""
    hardware: Hardware = assemble(probe_everything(machine)).with_accelerators(parse_devices(listed))
    return predict(model, SMALL, hardware)


def look_at(machine: Machine, devices: Sequence[WatchedDevice]) -> tuple[Accelerators, DeviceSample]:
    """Opened and looked at once, nothing having changed since."""
    accelerators = Accelerators(devices, machine).__enter__()
    (sample,) = accelerators.look(PID, exact=True)
    return accelerators, sample


def nvml_of(machine: Machine) -> FakeNvml:
    nvml = machine.clients.nvml
    assert isinstance(nvml, FakeNvml)
    return nvml


def fill(card: FakeCard, size: int, pid: int | None) -> None:
    """So much of it is taken, by this process if one is named."""
    assert isinstance(card.memory, dict)
    card.memory = memory(card.memory["total"], card.memory["reserved"], card.memory["used"] + size)
    if pid is not None:
        card.compute = [*card.compute, FakeProcess(pid=pid, usedGpuMemory=size)]


RTX_4090 = "  CUDA0: NVIDIA GeForce RTX 4090 (24083 MiB, 22901 MiB free)"


def test_a_card_of_nvidias_tells_what_the_process_holds(tmp_path: Path, gemma: Model) -> None:
    machine = build("rtx_4090", tmp_path)
    plan = plan_on(machine, RTX_4090, gemma)
    (device,) = watched_devices(plan)
    assert (device.name, device.pci, device.label) == ("CUDA0", "0000:01:00.0", "NVIDIA GeForce RTX 4090")
    assert device.floor_bytes == floor_of(plan.hardware.pool_named("CUDA0")) == 256 * MIB
    nvml = nvml_of(machine)
    nvml.times_opened = 0
    accelerators, sample = look_at(machine, [device])
    assert (sample.own_bytes, sample.taken_bytes) == (None, 0)
    assert "lists no such process" in sample.reason
    (card,) = nvml.cards
    free = dict(card.memory)["free"]  # type: ignore[arg-type]
    fill(card, 9 * GIB, PID)
    fill(card, 300 * MIB, None)  # by another program
    (sample,) = accelerators.look(PID, exact=True)
    assert (sample.process_bytes, sample.held_bytes, sample.reason) == (9 * GIB, 9 * GIB, "")
    assert sample.taken_bytes == 9 * GIB + 300 * MIB
    assert sample.free_bytes == free - 9 * GIB - 300 * MIB
    accelerators.__exit__(None, None, None)
    assert (nvml.times_opened, nvml.is_open) == (1, False)


def test_of_cards_that_are_alike_the_servers_log_says_which_it_uses(tmp_path: Path, gemma: Model) -> None:
    """With CUDA_VISIBLE_DEVICES=1 the second card is the first that the engine lists."""
    machine = build("two_cards", tmp_path)
    first, second = nvml_of(machine).cards
    second.name = first.name
    listed = "  CUDA0: NVIDIA GeForce RTX 3090 (24125 MiB, 23306 MiB free)"
    accelerators, _ = look_at(machine, watched_devices(plan_on(machine, listed, gemma)))
    fill(second, 5 * GIB, PID)
    line = "llama_prepare_model_devices: using device CUDA0 (NVIDIA GeForce RTX 3090) (0000:08:00.0) - 23306 MiB free"
    (sample,) = accelerators.look(PID, exact=True, places=read_log([line]).places)
    assert (sample.own_bytes, sample.taken_bytes) == (5 * GIB, 5 * GIB)
    (sample,) = accelerators.look(PID, exact=True)
    assert (sample.own_bytes, sample.taken_bytes) == (None, 0)


def test_in_a_container_what_became_less_free_stands_in(tmp_path: Path, gemma: Model) -> None:
    machine = build("rtx_4090", tmp_path)
    accelerators, _ = look_at(machine, watched_devices(plan_on(machine, RTX_4090, gemma)))
    fill(nvml_of(machine).cards[0], 7 * GIB, PID + 1)  # the host's number of it
    (sample,) = accelerators.look(PID, exact=True)
    assert (sample.own_bytes, sample.taken_bytes, sample.held_bytes) == (None, 7 * GIB, 7 * GIB)
    assert "inside a container" in sample.reason


def test_wsl2_lists_the_process_without_a_figure(tmp_path: Path, gemma: Model) -> None:
    machine = build("wsl2", tmp_path)
    listed = "  CUDA0: NVIDIA GeForce RTX 4070 (12281 MiB, 11000 MiB free)"
    accelerators, _ = look_at(machine, watched_devices(plan_on(machine, listed, gemma)))
    (card,) = nvml_of(machine).cards
    fill(card, 2 * GIB, None)
    card.compute = [FakeProcess(pid=PID, usedGpuMemory=None)]
    (sample,) = accelerators.look(PID, exact=True)
    assert (sample.own_bytes, sample.held_bytes) == (None, 2 * GIB)
    assert "does not say" in sample.reason


def test_amdgpu_tells_by_fdinfo_what_lies_in_the_card_and_beside_it(tmp_path: Path, gemma: Model) -> None:
    machine = build("rx_7900_xtx", tmp_path)
    files = FakeMachine(machine.root)
    listed = "  Vulkan0: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 24100 MiB free)"
    accelerators, before = look_at(machine, watched_devices(plan_on(machine, listed, gemma)))
    assert before.reason == "no driver tells what a process holds of it"
    text = "drm-driver:\tamdgpu\ndrm-client-id:\t9\ndrm-pdev:\t0000:03:00.0\n"
    fdinfo(files, PID, "llama-server", f"{text}drm-memory-vram:\t{5 * GIB // KIB} KiB\ndrm-memory-gtt:\t2048 KiB\n")
    files.write("/sys/class/drm/card1/device/mem_info_vram_used", f"{412090368 + 6 * GIB}\n")
    (sample,) = accelerators.look(PID, exact=True)
    assert (sample.own_bytes, sample.shared_bytes, sample.taken_bytes) == (5 * GIB, 2 * MIB, 6 * GIB)
    assert (sample.held_bytes, sample.free_bytes) == (5 * GIB, 25753026560 - 412090368 - 6 * GIB)


def test_graphics_in_the_machines_memory_hold_what_was_set_aside_and_what_is_shared(
    tmp_path: Path, gemma: Model
) -> None:
    machine = build("strix_halo_4", tmp_path)
    files = FakeMachine(machine.root)
    listed = "  Vulkan0: Radeon 8060S Graphics (RADV GFX1151) (102400 MiB, 102000 MiB free)"
    (device,) = watched_devices(plan_on(machine, listed, gemma))
    assert (device.shares_memory, device.floor_bytes, device.pci) == (True, 0, "0000:c5:00.0")
    accelerators, _ = look_at(machine, [device])
    text = "drm-driver:\tamdgpu\ndrm-client-id:\t9\ndrm-pdev:\t0000:c5:00.0\n"
    own, shared = 3 * GIB, 40 * GIB
    fdinfo(files, PID, "x", f"{text}drm-resident-vram:\t{own // KIB} KiB\ndrm-resident-gtt:\t{shared // KIB} KiB\n")
    files.write("/sys/class/drm/card1/device/mem_info_vram_used", f"{256 * MIB + own}\n")
    files.write("/sys/class/drm/card1/device/mem_info_gtt_used", f"{64 * MIB + shared + GIB}\n")
    (sample,) = accelerators.look(PID, exact=True)
    assert (sample.own_bytes, sample.shared_bytes, sample.held_bytes) == (own, shared, own + shared)
    assert (sample.taken_bytes, sample.free_bytes) == (own + shared + GIB, None)


def test_where_nvml_knows_no_memory_it_still_knows_the_process(tmp_path: Path, gemma: Model) -> None:
    machine = build("gb10", tmp_path)
    listed = "  CUDA0: NVIDIA GB10 (124610 MiB, 115787 MiB free)"
    (device,) = watched_devices(plan_on(machine, listed, gemma))
    assert (device.shares_memory, device.floor_bytes) == (True, 0)
    (card,) = nvml_of(machine).cards
    card.compute = [FakeProcess(pid=PID, usedGpuMemory=60 * GIB)]
    _, sample = look_at(machine, [device])
    assert (sample.process_bytes, sample.taken_bytes, sample.free_bytes) == (60 * GIB, None, None)


def test_a_mac_tells_nothing_from_outside(tmp_path: Path, gemma: Model) -> None:
    machine = build("m1_max", tmp_path)
    devices = watched_devices(plan_on(machine, "  MTL0: Apple M1 Max (26000 MiB, 25999 MiB free)", gemma))
    _, sample = look_at(machine, devices)
    assert (sample.device, sample.own_bytes, sample.taken_bytes, sample.held_bytes) == ("MTL0", None, None, None)
    assert sample.reason == "graphics memory of another process is not told on macOS"


def on_windows(machine: Machine, usage: dict[str, dict[str, int]]) -> Machine:
    """With counters that say so much of every adapter: Dedicated Usage and Shared Usage."""

    def counters(path: str) -> dict[str, int]:
        name = path.rpartition("\\")[2]
        return {f"pid_{PID}_luid_0x0_{adapter}_phys_0": sizes[name] for adapter, sizes in usage.items()}

    return Machine(
        machine.root,
        system="Windows",
        architecture="AMD64",
        clients=replace(machine.clients, counters=counters),
    )


RX_6800 = "  Vulkan0: AMD Radeon RX 6800 (16368 MiB, 15900 MiB free)"


def test_windows_counts_by_adapter(tmp_path: Path, gemma: Model) -> None:
    usage = {
        "0x1": {"Dedicated Usage": 6 * GIB, "Shared Usage": 70 * MIB},
        "0x2": {"Dedicated Usage": 0, "Shared Usage": 0},  # another adapter, which the process does not use
    }
    machine = on_windows(build("windows_radeon", tmp_path), usage)
    _, sample = look_at(machine, watched_devices(plan_on(machine, RX_6800, gemma)))
    assert (sample.own_bytes, sample.shared_bytes, sample.reason) == (6 * GIB, 70 * MIB, "")
    assert (sample.taken_bytes, sample.free_bytes) == (None, None)


def test_windows_adapters_that_could_be_each_other_are_not_guessed(tmp_path: Path, gemma: Model) -> None:
    usage = {name: {"Dedicated Usage": GIB, "Shared Usage": 0} for name in ("0x1", "0x2")}
    machine = on_windows(build("windows_radeon", tmp_path), usage)
    _, sample = look_at(machine, watched_devices(plan_on(machine, RX_6800, gemma)))
    assert (sample.own_bytes, sample.held_bytes) == (None, None)
    assert sample.reason == "Windows counts by adapter, and does not say which of them this is"


def test_where_no_accelerator_is_used_nothing_is_opened_and_nothing_asked(tmp_path: Path, gemma: Model) -> None:
    machine = build("rtx_4090", tmp_path)
    plan = predict(gemma, replace(SMALL, device="none"), plan_on(machine, RTX_4090, gemma).hardware)
    nvml = nvml_of(machine)
    nvml.times_opened = 0
    with Accelerators(watched_devices(plan), machine) as accelerators:
        assert accelerators.look(PID, exact=True) == ()
    assert nvml.times_opened == 0


def test_what_is_reached_over_a_network_is_not_watched_here(gemma: Model, tmp_path: Path) -> None:
    listed = "  RPC0[10.0.0.7:50052]: RPC device (24083 MiB, 22901 MiB free)"
    plan = plan_on(build("n100_nas", tmp_path), listed, gemma)
    assert any(device.name.startswith("RPC0") for device in plan.devices)
    assert watched_devices(plan) == ()


def test_a_driver_that_is_slow_to_answer_rests(tmp_path: Path, gemma: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = build("rtx_4090", tmp_path)
    now, asked = [0.0], [0]
    count = FakeNvml.nvmlDeviceGetComputeRunningProcesses

    def slow(nvml: FakeNvml, card: FakeCard) -> list[FakeProcess]:
        now[0] += 0.5
        asked[0] += 1
        return count(nvml, card)

    devices = watched_devices(plan_on(machine, RTX_4090, gemma))
    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetComputeRunningProcesses", slow)
    monkeypatch.setattr(accelerators_module.time, "monotonic", lambda: now[0])
    with Accelerators(devices, machine) as accelerators:
        while now[0] < 60:
            now[0] += 0.2
            accelerators.look(PID, exact=False)
        assert asked[0] == 6  # one look in ten and a half seconds
        accelerators.look(PID, exact=True)
        assert asked[0] == 7


# With a real server ------------------------------------------------------------------------------------------


class _Servers(Sequence[FakeProcess]):
    """As NVML would list it: the llama-server that this test has started, with what it holds."""

    def __init__(self, size: int) -> None:
        self._size = size

    def _list(self) -> list[FakeProcess]:
        return [FakeProcess(pid=child.pid, usedGpuMemory=self._size) for child in psutil.Process().children()]

    def __getitem__(self, index: Any) -> Any:
        return self._list()[index]

    def __len__(self) -> int:
        return len(self._list())


TWO_CARDS = "  CUDA0: NVIDIA GeForce RTX 3090 (24125 MiB, 23306 MiB free)\n"
TWO_CARDS += "  CUDA1: NVIDIA GeForce RTX 3060 (12036 MiB, 11800 MiB free)"


@pytest.fixture
def two_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = build("two_cards", tmp_path)
    monkeypatch.setattr(run_module, "Accelerators", partial(Accelerators, where=machine))
    yield machine
    assert not nvml_of(machine).is_open


@pytest.mark.engine
def test_every_sample_of_a_run_tells_of_each_card(
    two_cards: Machine, gemma: Model, smollm: Model, engine: Engine
) -> None:
    devices = watched_devices(plan_on(two_cards, TWO_CARDS, gemma))
    large, small = nvml_of(two_cards).cards
    large.compute, small.compute = _Servers(3 * GIB), _Servers(2 * GIB)
    measurement = measure(smollm, SMALL, engine, limits=Limits(devices=devices))
    for sample in (measurement.ready, measurement.steady, measurement.after, *measurement.samples[-3:]):
        assert [(device.device, device.held_bytes) for device in sample.devices] == [
            ("CUDA0", 3 * GIB),
            ("CUDA1", 2 * GIB),
        ]


@pytest.mark.engine
def test_a_run_is_ended_for_the_one_card_that_runs_short_and_it_is_named(
    two_cards: Machine, gemma: Model, smollm: Model, engine: Engine
) -> None:
    plan = plan_on(two_cards, TWO_CARDS, gemma)
    small = nvml_of(two_cards).cards[1]
    floor = floor_of(plan.hardware.pool_named("CUDA1"))

    def progress(progress: object) -> None:
        if "everyone" in repr(progress):
            left = floor - MIB
            small.memory = memory(12884901888, 200 * MIB, 12884901888 - 200 * MIB - left)

    limits = Limits(devices=watched_devices(plan))
    with pytest.raises(EngineFault) as fault:
        measure(smollm, replace(SMALL, ctx_size=8192), engine, limits=limits, on_progress=progress)
    assert fault.value.kind == "guard"
    assert fault.value.message.startswith(
        f"The run was ended to keep the machine well: only {floor / MIB - 1:.1f} MiB of memory were left on CUDA1 "
        f"(NVIDIA GeForce RTX 3060), less than the {floor / MIB:.1f} MiB that it needs ("
    )


@pytest.mark.engine
def test_what_was_seen_is_in_the_report_the_record_and_the_history(
    two_cards: Machine, smollm: Model, engine: Engine, tmp_path: Path
) -> None:
    """The real engine computes on the processor; the cards are made up, and one of them lists no process."""
    hardware = plan_on(two_cards, TWO_CARDS, smollm).hardware
    large, small = nvml_of(two_cards).cards
    large.compute = _Servers(3 * GIB)

    def progress(_index: int, progress: Progress) -> None:
        if progress.phase == "loading":
            small.memory = memory(12884901888, 200 * MIB, 10 * MIB + GIB)

    record = Record(tmp_path / "record")
    campaign = run_campaign(smollm, [SMALL], engine, record, detect=lambda: hardware, on_progress=progress)
    (run,), (document,) = campaign.runs, campaign.documents
    assert [(row.component, row.measured_bytes) for row in run.on_devices] == [
        ("resident on CUDA0", 3 * GIB),
        ("taken on CUDA1", GIB),
    ]
    rows = document["reconciliation"]["on_devices"]
    assert [(row["component"], row["predicted_bytes"]) for row in rows] == [
        ("resident on CUDA0", run.plan.bytes(device="CUDA0")),
        ("taken on CUDA1", run.plan.bytes(device="CUDA1")),
    ]
    steady, samples = document["measured"]["steady"], document["measured"]["samples"]
    assert [device["own_bytes"] for device in steady["devices"]] == [3 * GIB, None]
    assert steady["devices"][1]["reason"] == "it is listed on another device, not on this one"
    assert all(len(sample["devices"]) == 2 and "reason" not in sample["devices"][1] for sample in samples)
    assert document["measured"]["devices"] == [
        {"device": "CUDA0", "highest_bytes": 3 * GIB, "least_free_bytes": 25769803776 - 305 * MIB},
        {"device": "CUDA1", "highest_bytes": GIB, "least_free_bytes": 12884901888 - 210 * MIB - GIB},
    ]
    (kept,) = record.history().runs
    for text in (render_run(run), render_kept(kept, *record.body(kept))):
        assert re.search(r"^resident on CUDA0 .* 3,072\.00 ", text, re.MULTILINE)
        assert re.search(r"^taken on CUDA1 .* 1,024\.00 ", text, re.MULTILINE)
        assert "taken on CUDA1: what became less free since before the start, whoever took it (it is listed" in flat(
            text
        )
    assert "CUDA0: 3.0 GiB at most, 23.7 GiB free at least." in render_run(run)


def flat(text: str) -> str:
    """Without the breaks that a terminal's width asks for."""
    return " ".join(text.split())
