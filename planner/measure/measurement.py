"""What a measurement is: values only, so that it can be stored, shown and compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from planner.engine.log import EngineLog
from planner.launch import Launch

Phase = Literal["starting", "loading", "ready", "everyone", "steady", "one", "idle", "soak", "stopping"]
"""`everyone`: all people fill their contexts at once; `steady`: all of them are answered; `one`: a single person
does the same; `idle`: nobody asks anything; `soak`: conversation after conversation; the rest speaks for itself."""

STAGES: dict[Phase, str] = {
    "starting": "starting llama.cpp",
    "loading": "loading the model",
    "ready": "ready",
    "everyone": "everyone at once",
    "steady": "everyone is answered",
    "one": "one person alone",
    "idle": "nobody asks",
    "soak": "conversations",
    "stopping": "stopping",
}
"""The phases in their order, as people call them."""

SEED = 240_915
"""What the words of the prompts are generated from, where nobody asks for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """The memory of one accelerator at one moment. None where nothing tells."""

    device: str
    """llama.cpp's name."""
    shares_memory: bool
    """Whether what it uses is the machine's own memory."""
    own_bytes: int | None
    """What the server holds of the device's own memory, as the driver tells it of the process."""
    shared_bytes: int | None
    """What the server holds of the machine's memory for the device."""
    taken_bytes: int | None
    """By how much less is free on the device than before the start, whoever took it."""
    free_bytes: int | None
    """What is left of the device's own memory; None also where it has none."""
    reason: str = ""
    """Why `own_bytes` is unknown; empty where it is not."""

    @property
    def process_bytes(self) -> int | None:
        """What the driver says that the server holds on the device: of its own memory, or of the one that is shared."""
        if self.own_bytes is None or not self.shares_memory:
            return self.own_bytes
        return self.own_bytes + (self.shared_bytes or 0)

    @property
    def held_bytes(self) -> int | None:
        """The driver's figure of the process; where it has none, what became less free."""
        return self.taken_bytes if self.process_bytes is None else self.process_bytes


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
    swap_bytes: int | None = None
    """What of it was swapped out; a run in which that happens is ended."""
    devices: tuple[DeviceSample, ...] = ()
    """The accelerators that the launch uses."""

    def device(self, name: str) -> DeviceSample | None:
        """The accelerator with this name; None where it was not looked at."""
        return next((device for device in self.devices if device.device == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """The memory of one phase."""

    phase: Phase
    start_s: float
    """Of its first sample, since the server was started."""
    end_s: float
    resident_bytes: int | None
    """At its end."""
    anonymous_bytes: int | None
    highest_bytes: int | None
    """Highest resident memory that was seen in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePeak:
    """One accelerator over a whole run. None where nothing told."""

    device: str
    highest_bytes: int | None
    """The most that was held there, as the samples have it."""
    least_free_bytes: int | None
    """The least that was free of its own memory."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One conversation in the prompt cache, as llama.cpp logs it."""

    tokens: int
    checkpoints: int
    size_bytes: int
    """To a thousandth of a MiB, its checkpoints included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """What conversation after conversation left in memory."""

    seconds: float
    conversations: int
    """That came to their end, of all people together."""
    turns: int
    """Questions of each."""
    tokens: int
    """That each held at its end, of prompts and answers."""
    held: tuple[int, ...]
    """That each person's last conversation held at the end of the soak: fewer where the time cut it off, and 0 where
    not even a first question was asked."""
    ended: Literal["level", "time"]
    """Whether nothing grew any more, or the time was over."""
    before: Sample
    """Before the first conversation."""
    after: Sample
    kept_before_bytes: int
    """The prompt cache before the first conversation, as llama.cpp logs it."""
    kept_bytes: int
    """The prompt cache after the last one."""
    kept: tuple[Kept, ...]
    """What is in it then."""

    @property
    def grown_bytes(self) -> int | None:
        """By how much the server's own memory grew: mapped files left out."""
        before, after = self.before.anonymous_bytes, self.after.anonymous_bytes
        return None if before is None or after is None else after - before


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
    """Program and arguments that decide the run; port, key and verbosity of the measurement left out. Empty where no
    llama-server ran: the settings were handed to llama-cpp-python."""
    ghost: bool
    """Whether the model was a ghost: memory and speed are real, its file is gone."""
    stands_for: Path | None = None
    """The whole file that the ghost was made of, for a command to name; None where there is none."""
    engine_version: str
    engine_build: str
    engine_backends: tuple[str, ...] = ()
    """Those that showed on this machine."""
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
    seed: int = SEED
    """What the words of the prompts were generated from: no text of anyone's is used."""
    fill: float | None = None
    """The part of each person's context that was filled; None for one ubatch and a little more."""
    soak: Soak | None = None

    @property
    def phases(self) -> tuple[PhaseMemory, ...]:
        """The memory of each phase, in the order in which they came."""
        return tuple(_phase(phase, list(samples)) for phase, samples in groupby(self.samples, lambda s: s.phase))

    @property
    def peak_bytes(self) -> int | None:
        """Highest resident memory of the whole run."""
        peaks = [sample.peak_bytes for sample in self.samples if sample.peak_bytes is not None]
        return max(peaks, default=None)

    @property
    def devices(self) -> tuple[DevicePeak, ...]:
        """The accelerators over the whole run."""
        seen = [device for sample in self.samples for device in sample.devices]
        return tuple(
            DevicePeak(
                device=name,
                highest_bytes=max(
                    (d.held_bytes for d in seen if d.device == name and d.held_bytes is not None), default=None
                ),
                least_free_bytes=min(
                    (d.free_bytes for d in seen if d.device == name and d.free_bytes is not None), default=None
                ),
            )
            for name in dict.fromkeys(device.device for device in seen)
        )


def _phase(phase: Phase, samples: list[Sample]) -> PhaseMemory:
    return PhaseMemory(
        phase=phase,
        start_s=samples[0].seconds,
        end_s=samples[-1].seconds,
        resident_bytes=samples[-1].resident_bytes,
        anonymous_bytes=samples[-1].anonymous_bytes,
        highest_bytes=max((s.resident_bytes for s in samples if s.resident_bytes is not None), default=None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a measurement is."""

    phase: Phase
    done: int = 0
    total: int = 0
    """Requests answered and to be answered in this phase; 0 of 0 where there is nothing to count."""
    resident_bytes: int | None = None


OnProgress = Callable[[Progress], None]
