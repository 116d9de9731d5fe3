"""Locks of open files among programs of this kind: held until the file is closed, or the program ends in any way."""

from __future__ import annotations

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows
    CAN_LOCK = False
else:
    CAN_LOCK = True
"""Whether the system has such locks."""


def lock(descriptor: int, *, wait: bool = True) -> bool:
    """Lock an open file or folder; whether that was done. Some network file systems lock nothing.

    Raises BlockingIOError where another program holds it and nobody is to wait.
    """
    if not CAN_LOCK:
        return False
    try:
        flock(descriptor, LOCK_EX if wait else LOCK_EX | LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True
