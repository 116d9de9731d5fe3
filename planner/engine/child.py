"""Starting a program so that it ends with us, whatever interrupts us while it starts or ends us afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal

from planner.keeper import END_GROUP, Keeper

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = b"1000"
"""The highest oom_score_adj: where memory runs out, the kernel takes what we started, and nothing else."""


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
    """What the child does first: take interrupts again and, on Linux, ask to die with us, and before us and all
    others where memory runs out.
    """
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
            _offer_to_the_kernel()

    return prepare


def _offer_to_the_kernel() -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(descriptor, _OOM_SCORE)
        os.close(descriptor)


def signal_group(process: subprocess.Popen[Any], name: Literal["SIGINT", "SIGKILL"]) -> None:
    """Send a signal to a program and to what it started: the program named may be a script around it. It was started
    as the leader of its own session.
    """
    with contextlib.suppress(OSError):
        if sys.platform != "win32":
            os.killpg(process.pid, signal.Signals[name])
        else:
            process.kill()


def group_keeper(group: int) -> Keeper:
    """Who ends the process group with this id when we are gone.

    The parent-death signal reaches only what we started ourselves, and only on Linux. A llama-server may be a
    script, and the group is all that it started.
    """
    return Keeper(END_GROUP, str(group))
