"""What the record holds: the runs of this machine, and what they taught taken together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from planner.hardware import DeviceKind, Hardware
from planner.launch import Launch
from planner.memory import NOTHING_LEARNED, Learned, LearnedSize, MemoryPlan
from planner.memory.learned import Correction
from planner.memory.program import LIBRARY_NAME
from planner.model import Model
from planner.model.fingerprint import fingerprint
from planner.reconcile.lessons import ComputeLesson, DriverLesson, Lessons, correction_told, driver_told
from planner.units import GIB

_OF_NO_SPEED = ("ctx_size", "parallel", "kv_unified", "fit", "cache_ram", "ctx_checkpoints")
"""Settings that decide no speed, or that the resolved context says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run in short: enough for a table, and for what it teaches."""

    id: str
    at: str
    """When it started: ISO 8601, UTC."""
    model: str
    """What the model is known by, wherever its file lies (`fingerprint`)."""
    model_name: str
    architecture: str
    engine: str
    """The build."""
    machine: str
    """The machine in words; empty in records of version 1, which did not keep it."""
    kinds: tuple[DeviceKind, ...]
    """Back ends of the accelerators that it used."""
    launch: dict[str, Any]
    """Under the names of llama-server's options."""
    context: dict[str, Any]
    """As llama.cpp resolved it; empty where it is not known."""
    verdict: str
    predicted_bytes: int
    """Resident on the host, as predicted and as measured."""
    measured_bytes: int | None
    users: int
    prompt_tokens: int
    """That each person had sent when the answers were timed."""
    generated_tokens_per_s: float
    """Of everyone together."""
    one_generated_tokens_per_s: float
    """One person alone."""
    lessons: Lessons
    forgotten: bool = False
    """Whether a person took back what it taught."""

    @property
    def when(self) -> str:
        """The day and minute."""
        return self.at[:16].replace("T", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """One learned value that a prediction would use now: a size or a ratio, and the runs that it comes from."""

    what: str
    of: str
    """What it is true of: a model and build, a device, an architecture."""
    size_bytes: int | None = None
    ratio: float | None = None
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All runs, oldest first."""

    runs: tuple[Run, ...] = ()
    later: dict[str, int] = field(default_factory=dict)
    """Entries of a later version of this program, by id, with the version of their form."""

    def learned(self, model: Model, hardware: Hardware, engine: str | None = None) -> Learned:
        """What they teach about this model, machine and build. `engine` None takes the latest run with any
        llama-server: what Python holds beside the library says nothing of one.
        """
        if not self.runs:
            return NOTHING_LEARNED
        key = fingerprint(model)
        runs = [run for run in self.runs if not run.forgotten and _is_of(run, engine)]
        machine = machine_key(hardware)
        drivers = _drivers(_of_one_build(run for run in runs if run.machine == machine))
        return Learned(
            overhead={
                run.kinds: LearnedSize(run.lessons.overhead_bytes, run.id)
                for run in runs
                if run.model == key and run.lessons.overhead_bytes is not None
            },
            drivers={
                device.name: size
                for device in hardware.nameable
                if device.driver and (size := drivers.get((device.name, device.driver))) is not None
            },
            compute=_corrections(_of_one_build(run for run in runs if run.architecture == model.architecture)),
        )

    def same_launch(self, model: Model, plan: MemoryPlan) -> Run | None:
        """The latest run of this model on this machine whose settings decide the same speed; None before the first."""
        if plan.context is None or not self.runs:
            return None
        key = fingerprint(model)
        asked = _speed_key(asdict(plan.launch), asdict(plan.context))
        unset = asdict(Launch())  # of settings that are newer than a run
        machine = machine_key(plan.hardware)
        alike = (
            run
            for run in reversed(self.runs)
            if run.model == key and run.machine == machine and not run.forgotten
            if _speed_key({**unset, **run.launch}, run.context) == asked
        )
        return next(alike, None)


def _is_of(run: Run, engine: str | None) -> bool:
    return not run.engine.startswith(LIBRARY_NAME) if engine is None else run.engine == engine


def _drivers(runs: Iterable[Run]) -> dict[tuple[str, str], LearnedSize]:
    """By device and driver. A driver whose version is not known teaches nothing: the next one may be another."""
    lessons: dict[tuple[str, str], list[tuple[str, DriverLesson]]] = {}
    totals: dict[str, int] = {}
    for run in runs:
        totals |= _device_totals(run.machine)
        for lesson in run.lessons.drivers:
            if lesson.driver:
                lessons.setdefault((lesson.device, lesson.driver), []).append((run.id, lesson))
    told = {key: driver_told(of_key, totals.get(key[0])) for key, of_key in lessons.items()}
    return {key: size for key, size in told.items() if size is not None}


def _of_one_build(runs: Iterable[Run]) -> list[Run]:
    """Those of the build that ran last: corrections of different builds have nothing to do with each other."""
    of_all = list(runs)
    return [run for run in of_all if run.engine == of_all[-1].engine]


def _corrections(runs: Iterable[Run]) -> dict[DeviceKind, Correction]:
    lessons: dict[DeviceKind, list[tuple[str, ComputeLesson]]] = {}
    for run in runs:
        for lesson in run.lessons.compute:
            lessons.setdefault(lesson.kind, []).append((run.id, lesson))
    told = {kind: correction_told(of_kind) for kind, of_kind in lessons.items()}
    return {kind: correction for kind, correction in told.items() if correction is not None}


def _speed_key(launch: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    settings = {name: _plain(value) for name, value in launch.items() if name not in _OF_NO_SPEED}
    return {**settings, **{name: context.get(name) for name in ("n_ctx_seq", "n_seq_max", "n_stream")}}


def _plain(value: Any) -> Any:
    """A value as JSON keeps it."""
    return [_plain(entry) for entry in value] if isinstance(value, (tuple, list)) else value


def machine_key(hardware: Hardware) -> str:
    """The machine in words that change when its speed may: processor, cores, memory, accelerators."""
    memory = hardware.host.total_bytes
    parts = [
        f"{hardware.cpu_model or 'unknown processor'} ({hardware.cpu_architecture})",
        f"{hardware.cpu_cores or '?'} cores",
        # The kernel takes a little more or less of it with every update.
        "? GiB" if memory is None else f"{round(memory / GIB)} GiB",
    ]
    for device in hardware.accelerators:
        total = hardware.pool_named(device.pool).total_bytes
        parts.append(f"{device.name} {'?' if total is None else round(total / GIB)} GiB")
    return ", ".join(parts)


def _device_totals(machine: str) -> dict[str, int]:
    """How much memory the accelerators of a machine (`machine_key`) have, by name, rounded up."""
    return {name: (int(size) + 1) * GIB for name, size in re.findall(r", (\S+) (\d+) GiB", machine)}


def in_force(runs: Iterable[Run]) -> list[InForce]:
    """Every learned value that the next prediction of its model would use."""
    believed = [run for run in runs if not run.forgotten]
    values: dict[tuple[str, ...], InForce] = {}
    for run in believed:
        if (size := run.lessons.overhead_bytes) is not None:
            of = ", ".join((run.model_name, f"build {run.engine}", *run.kinds))
            key = ("overhead", run.model, run.engine, *run.kinds)
            values[key] = InForce(what="overhead", of=of, size_bytes=size, runs=(run.id,))
    for machine, engine in dict.fromkeys((run.machine, run.engine) for run in believed):
        alike = [run for run in believed if (run.machine, run.engine) == (machine, engine)]
        for (device, version), learned in _drivers(alike).items():
            of = f"{device}, {version}, build {engine}"
            driver = InForce(what="driver", of=of, size_bytes=learned.size_bytes, runs=(learned.run,))
            values["driver", machine, engine, device, version] = driver
    for architecture, engine in dict.fromkeys((run.architecture, run.engine) for run in believed):
        alike = [run for run in believed if (run.architecture, run.engine) == (architecture, engine)]
        for kind, correction in _corrections(alike).items():
            of = f"{architecture} on {kind}, build {engine}"
            compute = InForce(what="compute", of=of, ratio=correction.ratio, runs=correction.runs)
            values["compute", architecture, engine, kind] = compute
    return list(values.values())


def without(runs: Iterable[Run], forgotten: set[str]) -> tuple[Run, ...]:
    """The runs, with those marked whose lessons were taken back."""
    return tuple(replace(run, forgotten=run.id in forgotten) for run in runs)
