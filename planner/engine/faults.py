"""Why an engine ended, in words: its exit code or signal, and its own last lines."""

from __future__ import annotations

import re
import signal

_ERROR_LINE = re.compile(
    r"error|failed|unable|invalid|cannot|not (?:found|supported)|no backends|abort|out of memory|what\(\)", re.I
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(r"^[\d.]+ [IWEDT] ")
_QUOTED_LINES = 2
_GENERIC = ("exiting due to model loading error", "_impl: failed to load model", "please file a bug report")

_SIGNALS = {
    signal.SIGILL: "it was built for a newer processor than this one",
    signal.SIGSEGV: "it crashed (segmentation fault)",
    signal.SIGABRT: "it aborted",
    signal.SIGKILL: "it was killed: most often the system ran out of memory",
    signal.SIGBUS: "it lost a mapped file, or the disk is full or damaged",
}


def describe_exit(returncode: int, output: str) -> str:
    """A sentence part: `ended with exit code 1. It said: "error: invalid argument: --x".`"""
    if returncode - 128 in _SIGNALS or returncode - 128 in (signal.SIGINT, signal.SIGTERM):
        returncode = 128 - returncode  # a shell between us reports a signal so
    if returncode < 0:
        cause = f"died of {_signal_name(-returncode)}: {_SIGNALS.get(-returncode, 'it was ended')}"  # type: ignore[call-overload]
    else:
        cause = f"ended with exit code {returncode}"
    said = own_words(output)
    return f"{cause}. It said: {said}." if said else f"{cause}, without a word."


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
