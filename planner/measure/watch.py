"""Samples a server's memory from start to stop, in a thread of its own, and ends it where it has to end."""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType
from typing import Protocol

from planner.engine.faults import EngineFault
from planner.engine.log import EngineLog
from planner.measure.accelerators import Accelerators
from planner.measure.guard import Guard
from planner.measure.measurement import Phase, Sample
from probes import probe_process

INTERVAL_S = 0.2
LONG_RUN_SAMPLES = 6000
"""Samples of twenty minutes. A longer run is sampled half as often, and again, so that its record stays small."""


class Watched(Protocol):
    """What is watched."""

    @property
    def pid(self) -> int:
        """The process that was started."""

    @property
    def log(self) -> EngineLog:
        """What its log has said so far."""

    def end_for(self, fault: EngineFault) -> None:
        """End it at once."""


class Watcher:
    """Collects samples while it is open; `phase` marks what the server is doing."""

    def __init__(self, server: Watched, guard: Guard, accelerators: Accelerators) -> None:
        self._server = server
        self._guard = guard
        self._accelerators = accelerators
        self._pid = server.pid
        self._start = time.monotonic()
        self._interval_s = INTERVAL_S
        self._samples: list[Sample] = []
        self._one_at_a_time = threading.Lock()
        """Samples are in the order in which memory was read."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory watcher", daemon=True)
        self.phase: Phase = "loading"

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """What was collected so far, oldest first."""
        return tuple(self._samples)

    @property
    def resident_bytes(self) -> int | None:
        """The latest resident memory."""
        return self._samples[-1].resident_bytes if self._samples else None

    def follow(self) -> None:
        """Watch what really serves, once it does: the program that was named may be a script around it."""
        import psutil

        with contextlib.suppress(psutil.Error):
            named = psutil.Process(self._server.pid)
            family = [named, *named.children(recursive=True)]
            self._pid = max(family, key=lambda process: process.memory_info().rss).pid

    def enter(self, phase: Phase) -> None:
        """Mark what the server does from now on. However short it is, the record has a sample of it."""
        if phase == self.phase and self._samples:
            return
        with self._one_at_a_time:
            self.phase = phase
            self._keep(exact=False)

    def take(self) -> Sample:
        """An exact sample now: shared pages are counted by their share (`smaps_rollup`, slow on large ones)."""
        with self._one_at_a_time:
            sample = self._keep(exact=True)
        return sample or Sample(
            phase=self.phase,
            seconds=time.monotonic() - self._start,
            resident_bytes=None,
            anonymous_bytes=None,
            file_bytes=None,
            peak_bytes=None,
        )

    def _keep(self, *, exact: bool) -> Sample | None:
        sample = self._sample(exact=exact)
        if sample is not None:
            self._samples.append(sample)
        return sample

    def _run(self) -> None:
        next_kept = 0.0
        while not self._stop.wait(INTERVAL_S):
            with self._one_at_a_time:
                sample = self._sample(exact=False)
                if sample is not None and sample.seconds >= next_kept:
                    self._samples.append(sample)
                    next_kept = sample.seconds + self._interval_s - INTERVAL_S
                    if len(self._samples) % LONG_RUN_SAMPLES == 0:
                        self._interval_s *= 2
            objection = self._guard.objection(sample)
            if objection is not None:
                self._server.end_for(objection)
                return

    def _sample(self, *, exact: bool) -> Sample | None:
        memory = probe_process(self._pid, exact=exact)
        if memory is None and self._pid != self._server.pid:
            self._pid = self._server.pid  # what was followed has ended, and the server has not
            memory = probe_process(self._pid, exact=exact)
        if memory is None:
            return None
        return Sample(
            phase=self.phase,
            seconds=time.monotonic() - self._start,
            resident_bytes=memory.rss_bytes,
            anonymous_bytes=memory.anonymous_bytes,
            file_bytes=memory.file_bytes,
            peak_bytes=memory.peak_rss_bytes,
            swap_bytes=memory.swap_bytes,
            devices=self._accelerators.look(self._pid, exact=exact, places=self._server.log.places),
        )
