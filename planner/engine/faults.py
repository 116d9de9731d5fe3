"""Why an engine ended, in words: the kind of fault, its exit code or signal, and its own last lines."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Literal

from planner.errors import EngineError
from planner.units import MIB, format_bytes

FaultKind = Literal[
    "instruction", "memory", "killed", "allocation", "argument", "port", "model", "library", "crash", "ended",
    "hang", "context", "answer", "guard",
]  # fmt: skip
"""`instruction`: built for another processor; `memory`: the kernel ended it for want of memory; `killed`: by whom
is not known; `allocation`: a device refused memory; `hang`: it came to no end in its time; `context`: a slot ran
out of it; `answer`: it answered a request with an error; `guard`: we ended it to keep the machine well; `ended`:
of itself, for a reason that only its words tell."""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_ERROR_LINE = re.compile(
    r"error|failed|unable|invalid|cannot|not (?:found|supported)|no backends|abort|out of memory|couldn't|what\(\)",
    re.I,
)
_PREFIX = re.compile(r"^[\d.]+ [IWEDT] ")
_QUOTED_LINES = 2
_GENERIC = (
    "exiting due to model loading error",
    "exiting due to HTTP server error",
    "_impl: failed to load model",
    "please file a bug report",
)

_NUMBER = r"(?P<{}>\d+(?:[.,]\d+)?)"
_ALLOCATIONS = tuple(
    (default, re.compile(pattern))
    for default, pattern in (
        # ggml-alloc.c, ggml-backend.cpp
        ("", r"failed to allocate (?P<device>[A-Z]\S*) buffer of size " + _NUMBER.format("bytes")),
        # ggml-cuda.cu, which is ROCm's, too
        ("", r"allocating " + _NUMBER.format("mib") + r" MiB on (?P<device>device \d+): \w+Malloc failed"),
        # ggml-vulkan.cpp
        ("Vulkan", r"[Dd]evice memory allocation of size " + _NUMBER.format("bytes") + " failed"),
        # ggml-metal
        ("Metal", r"failed to allocate buffer, size = +" + _NUMBER.format("mib") + " MiB"),
        # ggml-backend.cpp, ggml.c
        ("CPU", r"failed to allocate buffer of size " + _NUMBER.format("bytes")),
        ("CPU", r"insufficient memory \(attempted to allocate +" + _NUMBER.format("mib") + " MB"),
        ("CPU", r"std::bad_alloc|[Cc]annot allocate memory"),
    )
)
"""How the back ends say that a device refused memory, the most telling first."""

_SAID: tuple[tuple[FaultKind, str, re.Pattern[str]], ...] = (
    (
        "library",
        "a library that it needs is missing",
        re.compile(r"error while loading shared libraries|dyld.*not load"),
    ),
    (
        "argument",
        "it does not take an argument",
        re.compile(r"error: (?:invalid|unknown) argument|error while handling"),
    ),
    ("port", "its port is in use", re.compile(r"couldn't bind|[Aa]ddress already in use")),
    ("model", "the model does not load", re.compile(r"failed to load model|error loading model")),
)
"""What its words say of a fault that is no signal, in the order in which they are asked."""

_SIGNALS: dict[int, tuple[FaultKind, str]] = {
    signal.SIGILL: ("instruction", "it was built for a newer processor than this one"),
    signal.SIGSEGV: ("crash", "it crashed (segmentation fault)"),
    signal.SIGABRT: ("crash", "it aborted"),
    signal.SIGFPE: ("crash", "it crashed (division by zero)"),
    signal.SIGKILL: ("killed", "it was killed: most often the system ran out of memory"),
    **(
        {signal.SIGBUS: ("crash", "it lost a mapped file, or the disk is full or damaged")}
        if hasattr(signal, "SIGBUS")
        else {}
    ),
}

_LESS = "Ask for less context, fewer people or a smaller cache type."
_HINTS: dict[FaultKind, str] = {
    "instruction": "Use a build for this processor (--engine PATH).",
    "memory": _LESS,
    "allocation": _LESS,
    "argument": "Use another build (--engine PATH).",
    "port": "Try again: another program took it in the meantime.",
}


class EngineFault(EngineError):
    """An engine failed in a way that has a name."""

    def __init__(self, message: str, hint: str = "", *, kind: FaultKind) -> None:
        super().__init__(message, hint)
        self.kind: FaultKind = kind


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a program ended."""

    kind: FaultKind
    words: str
    """A sentence part: `ended with exit code 1: it does not take an argument. It said: ...`."""

    def fault(self, subject: str, hint: str = "") -> EngineFault:
        """The error to raise: `subject` is what ended, `hint` a way out that knows more than the kind does."""
        return EngineFault(f"{subject} {self.words}", hint or _HINTS.get(self.kind, ""), kind=self.kind)


def diagnose(returncode: int, output: str, oom: str | None = None) -> Diagnosis:
    """Tell a fault from its exit code, its words and the kernel's counters.

    `oom` is what the counters say of a kill (`oom.kills_since`): who counted one, empty where none did, None
    where they could not be read.
    """
    if returncode - 128 in _SIGNALS or returncode - 128 in (signal.SIGINT, signal.SIGTERM):
        returncode = 128 - returncode  # a shell between us reports a signal so
    kind, cause = _cause(returncode, output, oom)
    how = f"died of {_signal_name(-returncode)}" if returncode < 0 else f"ended with exit code {returncode}"
    said = own_words(output)
    what = f"{how}: {cause}" if cause else how
    return Diagnosis(kind, f"{what}. It said: {said}." if said else f"{what}, without a word.")


def _cause(returncode: int, output: str, oom: str | None) -> tuple[FaultKind, str]:
    if returncode == -signal.SIGKILL and oom is not None:
        if oom:
            return "memory", f"the kernel ended it because memory ran out ({oom})"
        return "killed", "something killed it, and not the kernel for want of memory"
    kind, cause = _SIGNALS.get(-returncode, ("ended", "it was ended" if returncode < 0 else ""))
    if kind not in ("crash", "ended"):
        return kind, cause
    # A program that aborts over memory says so first.
    refused = refused_allocation(output)
    if refused:
        return "allocation", refused
    if kind == "crash":
        return kind, cause
    return next(((said, words) for said, words, pattern in _SAID if pattern.search(output)), (kind, cause))


def refused_allocation(output: str) -> str:
    """Which memory a device refused, with its size; empty where the log tells of none."""
    for default, pattern in _ALLOCATIONS:
        if match := pattern.search(output):
            found = match.groupdict()
            device = found.get("device") or default
            size = _size(found)
            return f"{device} refused {format_bytes(size)} of memory" if size else f"{device} refused memory"
    return ""


def _size(found: dict[str, str | None]) -> int | None:
    if found.get("bytes"):
        return int(float(str(found["bytes"])))
    mib = found.get("mib")
    return None if mib is None else round(float(mib.replace(",", ".")) * MIB)


def own_words(output: str) -> str:
    """The lines that tell what went wrong, quoted; else the very last one; empty if it said nothing."""
    lines = [_PREFIX.sub("", _ANSI.sub("", line)).strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if _ERROR_LINE.search(line)]
    specific = [line for line in telling if not any(word in line for word in _GENERIC)]
    chosen = (specific or telling or lines[-1:])[-_QUOTED_LINES:]
    return " / ".join(f'"{line[:300]}"' for line in dict.fromkeys(chosen))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
