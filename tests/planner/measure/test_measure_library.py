"""llama-cpp-python measured in a child: the same report as a llama-server's, and every way in which it can end."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.ghosts import ghost
from planner import Hardware, Launch, Model, predict
from planner.campaign import run_campaign
from planner.engine import library_run
from planner.engine.dry_run import library_is_here
from planner.engine.faults import EngineFault
from planner.engine.find import Engine
from planner.engine.library import InstalledLibrary, identify_library
from planner.engine.library_run import LibraryRun
from planner.engine.library_settings import context_settings
from planner.engine.process import Cancelled
from planner.engine.smoke import smoke_test
from planner.errors import UsageError
from planner.launch import CacheType, resolve_context
from planner.measure import Limits, Load, Measurement, Progress, measure
from planner.measure.users import Workload, text_of, workload_for
from planner.memory import Learned, LearnedSize
from planner.reconcile.reconciliation import Reconciliation, reconcile
from planner.reconcile.record import Record

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("engine"),
    pytest.mark.skipif(not library_is_here(), reason="llama-cpp-python is not installed"),
]

BASE = Launch(
    ctx_size=1024, parallel=2, kv_unified=False, ubatch_size=128, batch_size=256, cache_ram=0, ctx_checkpoints=0
)
FEW = Load(fill=0.2)
BEFORE, AFTER = 0.06, 0.02
"""How far resident memory may be from its prediction, before the first run and after it."""


@pytest.fixture(scope="session")
def library() -> InstalledLibrary:
    return identify_library()


def workload(model: Model, launch: Launch, fill: float | None = None) -> Workload:
    n_ctx_train = model.hyperparameters.n_ctx_train
    return workload_for(resolve_context(launch, n_ctx_train), n_ctx_train=n_ctx_train, fill=fill)


def held_against(
    model: Model, library: InstalledLibrary, measurement: Measurement, overhead_bytes: int | None = None
) -> Reconciliation:
    known = {} if overhead_bytes is None else {(): LearnedSize(overhead_bytes)}
    plan = predict(
        model,
        measurement.launch,
        Hardware.detect(),
        learned=Learned(overhead=known),
        prompt_tokens=measurement.everyone.prompt_tokens,
        program=library.program,
    )
    return reconcile(plan, measurement)


def off(run: Reconciliation) -> float:
    measured = run.resident.measured_bytes
    assert measured is not None
    return abs(run.resident.predicted_bytes - measured) / measured


def children() -> list[psutil.Process]:
    """The libraries at work."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any("library_serving" in word for word in child.cmdline()):
                found.append(child)
    return found


def assert_nothing_is_left() -> None:
    assert children() == []


def test_it_says_what_it_is(library: InstalledLibrary) -> None:
    assert library.version.startswith("llama-cpp-python 0.")
    assert "CPU" in library.backends
    assert library.devices == ()
    assert (library.path / "libllama.so").exists() or list(library.path.glob("*llama*"))
    assert library.launch(Launch()) == replace(Launch(), cache_ram=0, ctx_checkpoints=0)


@pytest.mark.parametrize(
    ("name", "cache_types"), [("smollm", ("f16", "q8_0", "q4_0")), ("gemma", ("f16", "q8_0"))], ids=["smollm", "gemma"]
)
def test_cache_types_are_measured_and_the_first_teaches(
    name: str, cache_types: tuple[CacheType, ...], request: pytest.FixtureRequest, library: InstalledLibrary
) -> None:
    model: Model = request.getfixturevalue(name)
    overhead = None
    for cache_type in cache_types:
        measurement = measure(model, BASE.with_cache_type(cache_type), library)
        assert_nothing_is_left()
        run = held_against(model, library, measurement, overhead)
        assert not [row for row in run.reserved if row.is_unexplained]
        exact = [row for row in run.reserved if row.component.partition(" ")[0] in ("weights", "kv", "output")]
        assert len(exact) >= 3
        assert [row.delta_bytes for row in exact] == [0] * len(exact)
        assert off(run) < (BEFORE if overhead is None else AFTER), run.resident
        overhead = overhead or run.learned_overhead_bytes
        assert overhead
        assert run.plan.growth_bytes() == 0
        assert measurement.command == ()
        assert measurement.engine_build == library.build
        assert [cache.k_type for cache in measurement.log.caches] == [cache_type] * len(measurement.log.caches)


@pytest.mark.parametrize("unified", [False, True])
def test_four_people_at_once_and_one_alone(smollm: Model, library: InstalledLibrary, unified: bool) -> None:
    launch = replace(BASE, parallel=4, kv_unified=unified)
    progress: list[Progress] = []
    measurement = measure(smollm, launch, library, load=FEW, on_progress=progress.append)
    asked = workload(smollm, launch, fill=0.2)
    everyone, one = measurement.everyone, measurement.one
    assert (everyone.users, one.users) == (4, 1)
    assert everyone.prompt_tokens == one.prompt_tokens == asked.prompt_tokens
    assert everyone.generated_tokens == asked.generated_tokens
    assert min(everyone.generated_tokens_per_s, one.generated_tokens_per_s, everyone.first_token_s) > 0
    phases = [phase.phase for phase in measurement.phases]
    assert [phase for phase in ("loading", "ready", "steady", "idle") if phase in phases] == [
        "loading", "ready", "steady", "idle"
    ]  # fmt: skip
    assert {step.phase for step in progress} >= {"starting", "loading", "ready", "steady", "one", "idle", "stopping"}
    assert max(step.done for step in progress if step.phase == "steady") == 4
    context = {name: measurement.log.context[name] for name in ("n_ctx_seq", "n_seq_max")}
    assert context == {"n_ctx_seq": 1024 if unified else 256, "n_seq_max": 4}


def test_one_person_alone_is_everyone(smollm: Model, library: InstalledLibrary) -> None:
    measurement = measure(smollm, Launch.for_users(1, 512), library, load=FEW)
    assert measurement.one is measurement.everyone
    assert measurement.everyone.users == 1


def test_prompts_are_the_words_that_a_server_gets(smollm: Model) -> None:
    with LibraryRun(smollm.path, BASE, ready_timeout_s=60) as run:
        run.wait_ready()
        tokens = run.tokenize(text_of(40, seed=7))
    assert len(tokens) >= 40
    assert len(set(tokens)) > 10


def test_everyone_gets_every_token_and_a_fresh_sequence(smollm: Model) -> None:
    """What was said before is forgotten, else the cache would be full the second time."""
    with LibraryRun(smollm.path, replace(BASE, ctx_size=512), ready_timeout_s=60) as run:
        run.wait_ready()
        prompts = [run.tokenize(text_of(count, seed=1))[:count] for count in (150, 3)]
        for _ in range(2):
            moments = run.generate(prompts, 40)
            assert [len(of_one) for of_one in moments] == [40, 40]
            assert all(of_one == sorted(of_one) for of_one in moments)


def test_tokens_came_when_the_child_had_them_whenever_they_were_read(
    smollm: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = time.monotonic()
    with LibraryRun(smollm.path, BASE, ready_timeout_s=60) as run:
        run.wait_ready()
        (moments,) = run.generate([[1, 2, 3]], 20)
    assert start < moments[0]
    assert moments[-1] < time.monotonic()  # of the same clock in both processes
    assert all(before < after for before, after in itertools.pairwise(moments))
    child = tmp_path / "child.py"
    answers = [*({"answered": [0], "at": moment} for moment in (1.5, 2.0, 4.25)), {"done": True, "at": 5.0}]
    in_one_burst = "".join(f"{json.dumps(answer)}\n" for answer in answers)
    said = "import sys; say = lambda text: print(text, end='', flush=True)\nsys.stdin.readline()\n"
    child.write_text(
        f"{said}say('{{\"ready\": true}}\\n')\nsys.stdin.readline()\nsay({in_one_burst!r})\nsys.stdin.read()"
    )
    monkeypatch.setattr(library_run, "_CHILD", child)
    with LibraryRun(smollm.path, BASE, ready_timeout_s=60) as run:
        run.wait_ready()
        assert run.generate([[1]], 3) == [[1.5, 2.0, 4.25]]


def test_a_full_cache_is_a_sentence(smollm: Model) -> None:
    with LibraryRun(smollm.path, replace(BASE, ctx_size=256, parallel=1), ready_timeout_s=60) as run:
        run.wait_ready()
        with pytest.raises(EngineFault, match="found no room in the cache") as fault:
            run.generate([run.tokenize(text_of(240, seed=1))[:240]], 20)
    assert fault.value.kind == "context"
    assert "--fill" in fault.value.hint


@pytest.mark.parametrize("phase", ["loading", "steady", "one"])
def test_it_ends_when_the_person_asks(smollm: Model, library: InstalledLibrary, phase: str) -> None:
    seen: list[str] = []
    with pytest.raises(Cancelled):
        measure(
            smollm,
            BASE,
            library,
            on_progress=lambda progress: seen.append(progress.phase),
            cancelled=lambda: phase in seen,
        )
    assert_nothing_is_left()


def test_the_guard_ends_it(smollm: Model, library: InstalledLibrary) -> None:
    with pytest.raises(EngineFault, match=r"only .* of memory were left") as fault:
        measure(smollm, BASE, library, limits=Limits(floor_bytes=1 << 60))
    assert fault.value.kind == "guard"
    with pytest.raises(EngineFault, match="ended at its deadline"):
        measure(smollm, replace(BASE, ctx_size=16384), library, load=Load(fill=1.0), limits=Limits(deadline_s=1.5))
    assert_nothing_is_left()


@pytest.mark.parametrize(
    ("program", "sentence", "kind"),
    [
        ("import os; os.kill(os.getpid(), 4)", "died of SIGILL: it was built for a newer", "instruction"),
        ("import os; os.write(2, b'GGML_ASSERT(x) failed'); os.abort()", "SIGABRT: it aborted. .*ASSERT", "crash"),
        ("raise SystemExit('error loading model: no such thing')", "exit code 1: the model does not load", "model"),
        ("import time; time.sleep(60)", "llama-cpp-python was not ready after 0.5 seconds", "hang"),
    ],
)  # fmt: skip
def test_a_child_that_fails_is_told_in_words(
    smollm: Model,
    library: InstalledLibrary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    sentence: str,
    kind: str,
) -> None:
    child = tmp_path / "child.py"
    child.write_text(program)
    monkeypatch.setattr(library_run, "_CHILD", child)
    with pytest.raises(EngineFault, match=sentence) as fault:
        measure(smollm, BASE, library, ready_timeout_s=0.5 if kind == "hang" else 60)
    assert fault.value.kind == kind
    with pytest.raises(EngineFault, match=r"with a tiny model: .* does not work on this machine"):
        smoke_test(library, kept=tmp_path / "engines.jsonl", ready_timeout_s=0.5 if kind == "hang" else 60)


def test_a_version_that_lacks_a_setting_is_told_so(
    smollm: Model, library: InstalledLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ctypes would take any name, and the launch would be another one."""

    def settings(launch: Launch, **threads: int | None) -> dict[str, Any]:
        made = context_settings(launch, **threads)
        return {**made, "plain": {**made["plain"], "n_later": 1}}

    monkeypatch.setattr(library_run, "context_settings", settings)
    with pytest.raises(EngineFault, match=r'exit code 1. It said: "error: this version has no setting n_later"'):
        measure(smollm, BASE, library)


def test_one_that_is_killed_at_work_is_told_with_what_it_was_given(smollm: Model, library: InstalledLibrary) -> None:
    def kill(progress: Progress) -> None:
        if progress.phase == "everyone":
            for child in children():
                child.kill()

    with pytest.raises(EngineFault, match=r"llama-cpp-python died of SIGKILL.*the prompts of 2 people") as fault:
        measure(smollm, BASE, library, on_progress=kill)
    assert fault.value.kind == "killed"


def test_an_abort_costs_one_launch_of_a_sweep(shared: Path, tmp_path: Path, library: InstalledLibrary) -> None:
    model = Model.open(ghost(shared, "kimi-linear-moe", tmp_path))
    launches = (replace(BASE, ctx_size=768, parallel=3), replace(BASE, ctx_size=256, parallel=1))
    campaign = run_campaign(model, launches, library, Record(tmp_path / "record"), load=FEW)
    assert [run.measurement.launch.slots for run in campaign.runs] == [1]
    (failure,) = campaign.failed
    assert "llama-cpp-python died of SIGABRT: it aborted" in str(failure.error)
    assert "GGML_ASSERT" in str(failure.error)


def test_a_token_is_decoded_once_for_each_library(library: InstalledLibrary, tmp_path: Path) -> None:
    kept = tmp_path / "engines.jsonl"
    smoke_test(library, kept=kept)
    before = kept.read_text()
    assert str(library.path) in before
    smoke_test(library, kept=kept)
    assert kept.read_text() == before
    elsewhere = tmp_path / "lib"
    elsewhere.mkdir()
    for files in (1, 2):  # a library that was built anew is tried anew
        (elsewhere / f"libllama.so.{files}").touch()
        smoke_test(replace(library, path=elsewhere), kept=kept)
        assert kept.read_text().count('"works":true') == 1 + files


@pytest.mark.parametrize(
    ("launch", "load", "sentence"),
    [
        (BASE, Load(soak_minutes=1.0), "keeps no prompts"),
        (replace(BASE, spec_type="draft-mtp"), Load(), "no second context that guesses ahead"),
        (replace(BASE, mmproj="mmproj.gguf"), Load(), "without a projector"),
        (replace(BASE, embeddings=True), Load(), "not with embeddings"),
    ],
)
def test_what_only_a_server_can_is_refused_before_anything_starts(
    smollm: Model, library: InstalledLibrary, launch: Launch, load: Load, sentence: str
) -> None:
    started: list[Progress] = []
    with pytest.raises(UsageError, match=sentence) as refusal:
        measure(smollm, launch, library, load=load, on_progress=started.append)
    assert "llama-server" in refusal.value.hint
    assert started == []


def test_what_a_run_taught_is_of_the_library_alone(
    smollm: Model, library: InstalledLibrary, engine: Engine, tmp_path: Path
) -> None:
    record = Record(tmp_path / "record")
    launch = Launch.for_users(1, 768)
    campaign = run_campaign(smollm, (launch,), library, record)
    machine = Hardware.detect()
    assert campaign.recommended_command is None
    assert campaign.documents[0]["command"] is None
    assert record.learned(smollm, machine, library.build).overhead
    assert not record.learned(smollm, machine, engine.build).overhead
    assert not record.learned(smollm, machine).overhead  # a plan without an engine is one of a llama-server
    (run,) = campaign.runs
    told = {row.component: row.dry_run_bytes for row in run.reserved if row.dry_run_bytes is not None}
    assert set(told) == {"kv", "compute", "output"}
    assert all(row.dry_run_bytes in (None, row.measured_bytes) for row in run.reserved)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_it_ends_with_the_thread_that_waits(smollm: Model) -> None:
    """From another thread, while it decodes."""
    fault = EngineFault("enough", kind="guard")
    with LibraryRun(smollm.path, BASE, ready_timeout_s=60) as run:
        run.wait_ready()
        threading.Timer(0.3, run.end_for, (fault,)).start()
        with pytest.raises(EngineFault, match="enough"):
            while True:
                run.generate([[1, 2, 3], [4, 5]], 500)
        pid = run.pid
    assert gone(pid)


def test_the_child_ends_when_nobody_asks_any_more(smollm: Model) -> None:
    """Whoever holds its input is gone: on every system, also without a keeper."""
    with LibraryRun(smollm.path, BASE, ready_timeout_s=60) as run:
        run.wait_ready()
        pid = run.pid
        assert pid != os.getpid()
        stream = run._running.stdin
        assert stream is not None
        stream.close()
        deadline = time.monotonic() + 30
        while not gone(pid):
            assert time.monotonic() < deadline
            time.sleep(0.02)
