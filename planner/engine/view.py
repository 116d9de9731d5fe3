"""The engine's view of the machine, asked beside everything else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from planner.engine.find import Engine, find_engine
from planner.errors import EngineError


class EngineView:
    """Finds the engine in a thread from the moment that this is made, and keeps what it answered.

    A llama-server that has to open a driver takes seconds to list its devices, and the probes do not need it.
    """

    def __init__(self, option: Path | None = None, find: Callable[[Path | None], Engine] = find_engine) -> None:
        self._engine: Engine | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._ask, args=(option, find), name="engine view", daemon=True)
        self._thread.start()

    def get(self) -> Engine:
        """The engine with its devices; waits for it. Raises EngineError where there is none."""
        self._thread.join()
        if self._engine is None:
            raise self._error or EngineError("The engine was not asked.")
        return self._engine

    def _ask(self, option: Path | None, find: Callable[[Path | None], Engine]) -> None:
        try:
            self._engine = find(option)
        except Exception as error:  # raised again where the answer is asked for
            self._error = error
