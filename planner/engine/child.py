"""Starting a program so that it ends with us, whatever interrupts us while it starts."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator

_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[set[int]]:
    """Let interrupts wait until the block is left; yields the mask that a child must get back."""
    if sys.platform == "win32":
        yield set()
        return
    held_back = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, held_back)
    try:
        yield {int(number) for number in mask}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def before_exec(mask: set[int]) -> Callable[[], None] | None:
    """What the child does first: take interrupts again and, on Linux, ask to die with us."""
    if sys.platform == "win32":
        return None
    # Looked up before the fork: between fork and exec only the calls themselves are safe.
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None
    parent = os.getpid()

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it died before the call
                os._exit(1)

    return prepare
