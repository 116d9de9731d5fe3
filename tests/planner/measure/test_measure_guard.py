"""What ends a run for the machine's sake, with a machine that is made up and with a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from planner import Hardware, Launch, Model
from planner.engine.faults import EngineFault
from planner.engine.find import Engine
from planner.hardware import Pool
from planner.measure import Limits, Sample, measure
from planner.measure import run as run_module
from planner.measure.guard import Guard, floor_of
from planner.units import GIB, MIB
from probes import HostMemory, probe_host

SMALL = replace(Launch.for_users(2, 256, cache_type="q8_0"), ubatch_size=64)


def machine(usable: int | None = 8 * GIB, *, swap_used: int | None = 0) -> HostMemory:
    """A machine with 16 GiB and 4 GiB of swap."""
    swap_total = 4 * GIB
    return HostMemory(
        total_bytes=16 * GIB,
        available_bytes=usable,
        usable_bytes=usable,
        swap_total_bytes=swap_total,
        swap_free_bytes=None if swap_used is None else swap_total - swap_used,
        limits=(),
        sources=(),
        warnings=(),
    )


def looks(*machines: HostMemory) -> Callable[[], HostMemory]:
    """The machine at each look; the last one stays."""
    left = list(machines)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def sample(swap_bytes: int | None = 0) -> Sample:
    return Sample(
        phase="steady",
        seconds=1.0,
        resident_bytes=GIB,
        anonymous_bytes=GIB,
        file_bytes=0,
        peak_bytes=GIB,
        swap_bytes=swap_bytes,
    )


def test_a_machine_that_is_well_is_left_in_peace() -> None:
    guard = Guard(Limits(floor_bytes=GIB), looks(machine()))
    assert guard.objection(sample()) is None
    assert guard.objection(None) is None


@pytest.mark.parametrize(
    ("limits", "after", "swapped", "kind", "words"),
    [
        (Limits(floor_bytes=GIB), machine(GIB - 1), 0, "guard", "only 1024.0 MiB of memory were left, less than"),
        (Limits(), machine(), 2 * MIB, "guard", "2.0 MiB of the server were swapped out (steady)"),
        (Limits(), machine(swap_used=65 * MIB), 0, "guard", "the machine began to swap (65.0 MiB more) (steady)"),
        (Limits(deadline_s=0), machine(), 0, "hang", "ended at its deadline of 0 minutes (steady)"),
    ],
)  # fmt: skip
def test_it_says_what_ended_the_run(limits: Limits, after: HostMemory, swapped: int, kind: str, words: str) -> None:
    objection = Guard(limits, looks(machine(), after)).objection(sample(swapped))
    assert objection is not None
    assert objection.kind == kind
    assert words in objection.message
    assert objection.hint


@pytest.mark.parametrize("after", [machine(None), machine(swap_used=None)])
def test_what_is_not_known_ends_nothing(after: HostMemory) -> None:
    guard = Guard(Limits(floor_bytes=GIB), looks(after))
    assert guard.objection(sample(swap_bytes=None)) is None


def test_swap_that_was_in_use_before_is_not_our_doing() -> None:
    before = machine(swap_used=GIB)
    assert Guard(Limits(), looks(before, before)).objection(sample()) is None


@pytest.mark.parametrize(("usable", "floor"), [(64 * GIB, 256 * MIB), (4 * GIB, 4 * GIB // 40), (None, 0)])
def test_the_floor_grows_with_the_machine_to_a_quarter_of_a_gib(usable: int | None, floor: int) -> None:
    assert floor_of(Pool(name="host", total_bytes=64 * GIB, usable_bytes=usable, source="")) == floor


# With a real server ----------------------------------------------------------------------------------------


@pytest.fixture
def no_server_is_left() -> Iterator[None]:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


@pytest.mark.engine
@pytest.mark.usefixtures("no_server_is_left")
def test_a_run_ends_at_once_where_too_little_memory_is_left(smollm: Model, engine: Engine) -> None:
    usable = probe_host().usable_bytes
    assert usable is not None
    with pytest.raises(EngineFault, match=r"ended to keep the machine well: only .* of memory were left") as fault:
        measure(smollm, SMALL, engine, limits=Limits(floor_bytes=2 * usable))
    assert fault.value.kind == "guard"


@pytest.mark.engine
@pytest.mark.usefixtures("no_server_is_left")
def test_a_run_that_does_not_come_to_its_end_is_ended_at_the_deadline(smollm: Model, engine: Engine) -> None:
    with pytest.raises(
        EngineFault, match=r"ended at its deadline of .* minutes \((loading|everyone|steady)\)"
    ) as fault:
        measure(smollm, replace(SMALL, ctx_size=16384), engine, limits=Limits(deadline_s=1.0))
    assert fault.value.kind == "hang"


@pytest.mark.engine
@pytest.mark.usefixtures("no_server_is_left")
@pytest.mark.parametrize("phase", ["everyone", "steady"])
def test_memory_that_runs_out_while_people_are_served_ends_the_run(
    smollm: Model, engine: Engine, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    reached: list[str] = []

    def look() -> HostMemory:
        return machine(MIB if phase in reached else GIB)

    monkeypatch.setattr(run_module, "Guard", lambda limits: Guard(limits, look))
    with pytest.raises(EngineFault, match=rf"only 1\.0 MiB of memory were left, .* \({phase}\)"):
        measure(
            smollm,
            replace(SMALL, ctx_size=4096),
            engine,
            limits=Limits(floor_bytes=512 * MIB),
            on_progress=lambda progress: reached.append(progress.phase),
        )


@pytest.mark.engine
def test_a_server_that_dies_at_its_first_long_prompt_is_told_so(smollm: Model, engine: Engine, tmp_path: Path) -> None:
    """A script around the real one, which kills it when the log says that a prompt has come."""
    script = tmp_path / "llama-server"
    script.write_text(
        f'#!/bin/sh\n{engine.path} "$@" 2>&1 | while read -r line; do echo "$line"; '
        'case "$line" in *"new prompt"*) kill -SEGV $$ ;; esac; done\n'
    )
    script.chmod(0o755)
    with pytest.raises(
        EngineFault, match=r"died of SIGSEGV: .* It had loaded well, and was given the prompts of 2"
    ) as fault:
        measure(smollm, SMALL, replace(engine, path=script))
    assert fault.value.kind == "crash"


@pytest.mark.engine
@pytest.mark.usefixtures("no_server_is_left")
def test_the_memory_of_a_server_behind_a_script_is_the_servers(smollm: Model, engine: Engine, tmp_path: Path) -> None:
    script = tmp_path / "llama-server"
    script.write_text(f'#!/bin/sh\n{engine.path} "$@"\n')
    script.chmod(0o755)
    measurement = measure(smollm, replace(SMALL, parallel=1, ctx_size=256), replace(engine, path=script))
    assert measurement.steady.resident_bytes is not None
    assert measurement.steady.resident_bytes > smollm.tensor_bytes


@pytest.mark.engine
def test_slots_that_share_a_cache_that_is_too_small_run_out_of_context(
    smollm: Model, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What people ask for always fits; here twice as much is asked for."""
    fits = run_module.workload_for

    def too_much(*args: object, **options: object) -> object:
        workload = fits(*args, **options)  # type: ignore[arg-type]
        return replace(workload, prompt_tokens=2 * workload.prompt_tokens)

    monkeypatch.setattr(run_module, "workload_for", too_much)
    with pytest.raises(EngineFault, match=r"A slot ran out of context: .*has been exceeded") as fault:
        measure(smollm, replace(Launch.for_users(2, 256, unified=True), ubatch_size=64), engine)
    assert fault.value.kind == "context"


def test_a_launch_that_would_leave_less_than_the_floor_is_tight(gemma: Model) -> None:
    """So that the sentence of the plan says why it is not started."""
    from planner import Verdict, predict
    from planner.campaign import may_start

    needed = predict(gemma, SMALL, Hardware.simulate(ram=8 * GIB)).bytes()
    for spare, starts in ((MIB, False), (GIB, True)):
        plan = predict(gemma, SMALL, Hardware.simulate(ram=needed + spare))
        assert may_start(plan) is starts
        if not starts:
            assert plan.verdict is Verdict.TIGHT
            assert "less than the" in plan.verdict_reason
