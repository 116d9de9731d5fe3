"""Real runs of two real models against the prediction: the promise that the program makes."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import psutil
import pytest
from measured_run import Run

from planner import Launch, Model
from planner.engine.arguments import server_arguments
from planner.engine.find import Engine
from planner.engine.log import ROUNDING_BYTES
from planner.engine.process import Cancelled
from planner.launch import CacheType, resolve_context
from planner.measure import Progress, measure
from planner.reconcile.reconciliation import reconcile
from planner.units import MIB

Measured = Callable[[Model, Launch], Run]

HUNDREDTH_MIB = ROUNDING_BYTES + 1


def divided(cache_type: CacheType) -> Launch:
    """Two people with 1,024 tokens each; a narrow ubatch, since reading a wide one takes long."""
    return replace(Launch.for_users(2, 1024, cache_type=cache_type), ubatch_size=64)


REARRANGED = "unmapped and unrearranged"
"""For Gemma only: nothing of the other model is rearranged in the first place."""
LAUNCHES = {
    "f16 for two": divided("f16"),
    "q8_0 for two": divided("q8_0"),
    "q4_0 for two": divided("q4_0"),
    "q8_0 for one, default ubatch": Launch.for_users(1, 4096, cache_type="q8_0"),
    "f16 shared by four": replace(Launch.for_users(4, 512, unified=True), ubatch_size=64),
    REARRANGED: replace(divided("q8_0"), load_mode="none", repack=False, flash_attn="on"),
}


@pytest.fixture(
    params=[
        pytest.param((name, label), id=f"{name}: {label}", marks=pytest.mark.xdist_group(f"{name} runs"))
        for name in ("gemma", "smollm")
        for label in LAUNCHES
        if name == "gemma" or label != REARRANGED
    ]
)
def measured(request: pytest.FixtureRequest, run: Measured) -> Run:
    name, label = request.param
    model: Model = request.getfixturevalue(name)
    return run(model, LAUNCHES[label])


@pytest.mark.engine
class TestEveryRun:
    def test_reserved_buffers_are_as_predicted(self, measured: Run) -> None:
        """Weights per buffer, KV cache and output to the last digit of the log; compute within 1 %."""
        log, plan = measured.measurement.log, measured.predict()
        weights = {a.buffer: a.reserved_bytes for a in plan.allocations if a.component == "weights"}
        logged = {b.device: b.size_bytes for b in log.buffers if b.kind == "model"}
        assert logged == pytest.approx(weights, abs=HUNDREDTH_MIB)
        caches = [a.reserved_bytes for a in plan.allocations if a.component == "kv"]
        assert [b.size_bytes for b in log.buffers if b.kind == "kv"] == pytest.approx(caches, abs=HUNDREDTH_MIB)
        assert log.buffer_bytes("output") == pytest.approx(plan.bytes(component="output"), abs=HUNDREDTH_MIB)
        assert log.buffer_bytes("compute") == pytest.approx(plan.bytes(component="compute"), rel=0.01)
        assert log.buffer_bytes("state") is None

    def test_the_context_is_as_resolved(self, measured: Run) -> None:
        context = resolve_context(measured.launch, measured.model.hyperparameters.n_ctx_train)
        assert measured.measurement.log.context == {
            "n_ctx": context.n_ctx,
            "n_ctx_seq": context.n_ctx_seq,
            "n_batch": context.n_batch,
            "n_ubatch": context.n_ubatch,
            "n_seq_max": context.n_seq_max,
        }

    def test_every_slot_read_a_whole_prompt(self, measured: Run) -> None:
        asked = re.findall(r"id +(\d+) .*new prompt, .*task\.n_tokens = (\d+)", measured.measurement.log_text)
        assert {int(slot) for slot, _ in asked} == set(range(measured.launch.slots))
        assert {int(tokens) for _, tokens in asked} == {measured.workload.prompt_tokens}

    def test_every_answer_came_to_its_end(self, measured: Run) -> None:
        everyone, one = measured.measurement.everyone, measured.measurement.one
        assert everyone.users == measured.launch.slots
        assert one.users == 1
        for speed in (everyone, one):
            assert speed.prompt_tokens == measured.workload.prompt_tokens
            assert speed.generated_tokens == measured.workload.generated_tokens
            assert 0 < speed.prompt_tokens_per_s < 100_000
            assert 0 < speed.generated_tokens_per_s < 10_000
            assert 0 < speed.first_token_s < 600

    def test_memory_was_watched_from_start_to_end(self, measured: Run) -> None:
        measurement = measured.measurement
        order = ["loading", "ready", "everyone", "steady", "one", "idle", "stopping"]
        phases = [order.index(sample.phase) for sample in measurement.samples]
        assert phases == sorted(phases)
        assert {"everyone"} <= {sample.phase for sample in measurement.samples}
        moments = [sample.seconds for sample in measurement.samples]
        assert moments == sorted(moments)
        assert measurement.ready.phase == "ready"
        assert measurement.steady.phase == "steady"
        assert measurement.after.phase == "idle"
        assert None not in (measurement.ready.resident_bytes, measurement.steady.resident_bytes)

    def test_the_memory_of_each_phase_can_be_told(self, measured: Run) -> None:
        phases = {phase.phase: phase for phase in measured.measurement.phases}
        assert len(phases) == len(measured.measurement.phases)
        assert {"loading", "ready", "everyone", "steady", "idle"} <= set(phases)
        for phase in phases.values():
            assert phase.start_s <= phase.end_s
            assert phase.resident_bytes is not None and phase.highest_bytes is not None
            assert phase.highest_bytes >= phase.resident_bytes
        assert phases["steady"].resident_bytes == measured.measurement.steady.resident_bytes

    def test_what_is_resident_adds_up(self, measured: Run) -> None:
        steady = measured.measurement.steady
        assert steady.resident_bytes is not None
        assert steady.anonymous_bytes is not None
        assert steady.file_bytes is not None
        assert measured.measurement.peak_bytes is not None
        assert steady.anonymous_bytes + steady.file_bytes <= steady.resident_bytes + MIB
        assert measured.measurement.peak_bytes >= steady.resident_bytes

    def test_resident_memory_is_as_predicted_once_the_overhead_is_learned(self, measured: Run, run: Measured) -> None:
        """Learned from one run with an f16 cache, within 2 % for every other launch of the model."""
        first = run(measured.model, LAUNCHES["f16 for two"])
        learned = reconcile(first.predict(), first.measurement).learned_overhead_bytes
        assert learned is not None
        steady = measured.measurement.steady.resident_bytes
        assert measured.predict(learned).resident_bytes() == pytest.approx(steady, rel=0.02)

    def test_the_reconciliation_finds_nothing_unexplained(self, measured: Run) -> None:
        reconciliation = reconcile(measured.predict(), measured.measurement)
        assert [row.component for row in reconciliation.reserved if row.cause == "unexplained"] == []

    def test_checkpoints_are_as_predicted(self, measured: Run) -> None:
        plan = measured.predict()
        predicted = plan.resident_bytes(component="checkpoints")
        assert measured.measurement.log.checkpoints_bytes == pytest.approx(predicted, abs=0.01 * MIB)
        assert (predicted > 0) == (measured.model.architecture == "gemma3")

    def test_nothing_of_a_finished_conversation_is_kept_before_memory_is_read(self, measured: Run) -> None:
        assert measured.measurement.log.prompt_cache_bytes == 0

    def test_the_command_can_be_run_again(self, measured: Run, engine: Engine) -> None:
        command = measured.measurement.command
        assert command[0] == str(engine.path)
        assert list(command[1:]) == server_arguments(measured.launch, measured.model.path.resolve(), engine.flags)
        assert not {"--port", "--host", "--verbosity", "--api-key"} & set(command)

    def test_progress_names_every_stage_in_order(self, measured: Run) -> None:
        stages = list(dict.fromkeys(progress.phase for progress in measured.progress))
        expected = ["starting", "loading", "ready", "everyone", "steady", "one", "idle", "stopping"]
        assert stages == [stage for stage in expected if stage in stages]
        assert set(expected) - {"one"} <= set(stages)
        counted = [(p.done, p.total) for p in measured.progress if p.phase == "steady"]
        assert counted[-1] == (measured.launch.slots, measured.launch.slots)


@pytest.mark.engine
@pytest.mark.xdist_group("smollm runs")
@pytest.mark.parametrize("phase", ["loading", "everyone", "one"])
def test_a_run_that_the_person_stops_leaves_nothing(smollm: Model, engine: Engine, phase: str) -> None:
    stop = threading.Event()

    def watch(progress: Progress) -> None:
        if progress.phase == phase:
            stop.set()

    launch = replace(Launch.for_users(1 if phase != "one" else 2, 256), ubatch_size=64)
    with pytest.raises(Cancelled):
        measure(smollm, launch, engine, on_progress=watch, cancelled=stop.is_set, ready_timeout_s=120)
    assert [child.name() for child in psutil.Process().children() if "llama" in child.name()] == []
    deadline = time.monotonic() + 60
    while any(t.name.startswith(("user", "memory watcher")) for t in threading.enumerate()):
        assert time.monotonic() < deadline, "threads of the run are still there"
        time.sleep(0.05)
