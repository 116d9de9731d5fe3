"""What a measurement is: values only, so that it can be stored, shown and compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from planner.engine.log import EngineLog
from planner.launch import Launch

Phase = Literal["starting", "loading", "ready", "everyone", "one", "stopping"]
"""`everyone`: all people at once; `one`: a single person; the rest speaks for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The server's memory at one moment. None where the system does not tell."""

    phase: Phase
    seconds: float
    """Since the server was started."""
    resident_bytes: int | None
    anonymous_bytes: int | None
    """Heap, caches and compute buffers: memory that nothing else can take."""
    file_bytes: int | None
    """Mapped weights and libraries: page cache, which the system can drop."""
    peak_bytes: int | None
    """Highest resident memory so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast people were served, all together."""

    users: int
    prompt_tokens: int
    """Tokens of each person's prompt."""
    generated_tokens: int
    """Tokens generated for each person."""
    prompt_tokens_per_s: float
    """Prompt tokens of all people over the time until everyone's answer had begun."""
    generated_tokens_per_s: float
    """Tokens of all people over the time in which all of them were being answered."""
    first_token_s: float
    """Until the slowest person's answer began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one launch really held and how fast it was."""

    launch: Launch
    command: tuple[str, ...]
    """Program and arguments that decide the run; port, key and verbosity of the measurement left out."""
    ghost: bool
    """Whether the model was a ghost: memory and speed are real, its file is gone."""
    stands_for: Path | None = None
    """The whole file that the ghost was made of, for a command to name; None where there is none."""
    engine_version: str
    engine_build: str
    started_at: str
    """ISO 8601, UTC."""
    load_seconds: float
    log: EngineLog
    ready: Sample
    """After loading and warm-up, before the first prompt."""
    steady: Sample
    """After every slot has read a prompt and generated."""
    after: Sample
    """At the end, after the single person's turn."""
    samples: tuple[Sample, ...]
    everyone: Speed
    one: Speed
    """One person alone; the same as `everyone` where there is only one."""
    log_text: str

    @property
    def peak_bytes(self) -> int | None:
        """Highest resident memory of the whole run."""
        peaks = [sample.peak_bytes for sample in self.samples if sample.peak_bytes is not None]
        return max(peaks, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a measurement is."""

    phase: Phase
    done: int = 0
    total: int = 0
    """Requests answered and to be answered in this phase; 0 of 0 where there is nothing to count."""
    resident_bytes: int | None = None


OnProgress = Callable[[Progress], None]
