"""One measurement at a time: two at once slow each other, and what both say of speed is wrong."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from planner.errors import EngineError
from planner.locks import CAN_LOCK, lock


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder of the record for as long as something is measured. The lock ends with the program.

    Raises EngineError where another planner holds it; where the system has no such locks nothing is checked.
    """
    if not CAN_LOCK:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            lock(descriptor, wait=False)
        except BlockingIOError:
            raise EngineError(
                "Another planner is measuring here: each would slow the other, and both would be wrong.",
                "Wait until it has ended.",
            ) from None
        yield
    finally:
        os.close(descriptor)
