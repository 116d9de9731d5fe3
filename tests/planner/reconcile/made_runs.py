"""Measurements without a run: what a server would have said that holds exactly what was predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner import Hardware, MemoryPlan
from planner.engine.log import Buffer, BufferKind, EngineLog, LoggedCache
from planner.measure import Measurement, Sample, Speed
from planner.units import MIB

KINDS: dict[str, BufferKind] = {
    "weights": "model",
    "kv": "kv",
    "state": "state",
    "compute": "compute",
    "output": "output",
}


def as_printed(size_bytes: int) -> int:
    """A size as the log says it: in MiB with two decimals."""
    return round(round(size_bytes / MIB, 2) * MIB)


def sample(resident_bytes: int | None) -> Sample:
    """The memory of a server."""
    return Sample(
        phase="everyone",
        seconds=1.0,
        resident_bytes=resident_bytes,
        anonymous_bytes=None,
        file_bytes=None,
        peak_bytes=resident_bytes,
    )


def measured_as_planned(plan: MemoryPlan, **differences: object) -> Measurement:
    """The measurement of a plan that came true; `log`, `resident_bytes` and further fields say what did not."""
    buffers = tuple(
        Buffer(
            kind=KINDS[a.component],
            device=a.buffer if a.component == "weights" else a.device,
            size_bytes=as_printed(a.reserved_bytes),
        )
        for a in plan.allocations
        if a.component in KINDS
    )
    caches = sum(a.component == "kv" for a in plan.allocations)
    log = EngineLog(
        buffers=buffers,
        caches=(LoggedCache(cells=1, layers=1),) * caches,
        cpu_features=frozenset({"AVX", "AVX2", "F16C"}),
    )
    resident = sample(differences.pop("resident_bytes", plan.resident_bytes(device="CPU")))  # type: ignore[arg-type]
    speed = Speed(
        users=2,
        prompt_tokens=600,
        generated_tokens=32,
        prompt_tokens_per_s=100.0,
        generated_tokens_per_s=20.0,
        first_token_s=1.0,
    )
    measurement = Measurement(
        launch=plan.launch,
        command=("llama-server", "--model", "model.gguf"),
        ghost=False,
        engine_version="1 (0abc123)",
        engine_build="0abc123",
        started_at="2026-11-29T12:00:00+00:00",
        load_seconds=1.0,
        log=log,
        ready=resident,
        steady=resident,
        after=resident,
        samples=(resident,),
        everyone=speed,
        one=speed,
        log_text="",
    )
    return replace(measurement, **differences)  # type: ignore[arg-type]


def machine(ram: int) -> Callable[[], Hardware]:
    """Looks at a machine with so much memory."""
    return lambda: Hardware.simulate(ram=ram)
