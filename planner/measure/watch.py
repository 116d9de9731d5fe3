"""Samples a process's memory from start to stop, in a thread of its own."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from planner.measure.measurement import Phase, Sample
from probes import probe_process

INTERVAL_S = 0.2


class Watcher:
    """Collects samples while it is open; `phase` marks what the server is doing."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._start = time.monotonic()
        self._samples: list[Sample] = []
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

    def take(self) -> Sample:
        """An exact sample now: shared pages are counted by their share (`smaps_rollup`, slow on large ones)."""
        sample = self._sample(exact=True)
        if sample is None:
            return Sample(
                phase=self.phase,
                seconds=time.monotonic() - self._start,
                resident_bytes=None,
                anonymous_bytes=None,
                file_bytes=None,
                peak_bytes=None,
            )
        self._samples.append(sample)
        return sample

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            sample = self._sample(exact=False)
            if sample is not None:
                self._samples.append(sample)

    def _sample(self, *, exact: bool) -> Sample | None:
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
        )
