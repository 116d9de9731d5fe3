"""llama-cpp-python at work on a launch: a child process that serves people for real, watched like a llama-server."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from planner.engine.faults import EngineFault
from planner.engine.library_process import CHILD_ENVIRONMENT
from planner.engine.library_settings import context_settings, model_settings
from planner.engine.process import POLL_S, EngineProcess
from planner.launch import Launch
from planner.memory.program import LIBRARY_NAME

_CHILD = Path(__file__).with_name("library_serving.py")
_NO_ROOM = 1
"""What `llama_decode` answers where the cache has no place for a batch (`include/llama.h`)."""


class LibraryRun(EngineProcess):
    """A child with the model opened and the context made, both as llama-server would; nothing listens anywhere."""

    name = LIBRARY_NAME
    _stdin = subprocess.PIPE
    _stderr = subprocess.PIPE

    def __init__(
        self, path: Path, launch: Launch, *, ready_timeout_s: float, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """`path` is the model. What a library cannot do of the launch is to be refused before (`library_refusal`)."""
        # -P: the folder of the child's file holds modules of ours, which are none of its.
        super().__init__((sys.executable, "-P", str(_CHILD)), ready_timeout_s=ready_timeout_s, cancelled=cancelled)
        self._opening = {
            "path": str(path),
            "model": model_settings(launch, None, dry=False),
            "context": context_settings(launch, threads=_threads()),
        }
        self._answers: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._opened = False

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), **CHILD_ENVIRONMENT}

    def _start(self, command: list[str]) -> None:
        super()._start(command)
        threading.Thread(target=self._hear, name=f"{self.name} answers", daemon=True).start()
        self._ask(self._opening)

    def _hear(self) -> None:
        stream = self._running.stdout
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed, or cut off by its death
            for line in stream or ():
                self._answers.put(json.loads(line))

    def _ask(self, request: dict[str, Any]) -> None:
        stream = self._running.stdin
        assert stream is not None
        with contextlib.suppress(OSError):  # it has ended, and whoever waits for the answer says why
            stream.write(json.dumps(request) + "\n")
            stream.flush()

    def _answer(self, on_wait: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The next answer, with the moment at which the child had it: on a busy machine several are read at once."""
        while True:
            with contextlib.suppress(Empty):
                return self._answers.get(timeout=POLL_S)
            self.check_alive()
            self.pause(0)
            on_wait()

    def _is_ready(self) -> bool:
        if not self._opened and not self._answers.empty():
            self._opened = "ready" in self._answers.get()
        return self._opened

    def tokenize(self, text: str) -> list[int]:
        """The text in the model's own vocabulary."""
        self._ask({"text": text})
        tokens: list[int] = self._answer()["tokens"]
        return tokens

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        on_step: Callable[[Sequence[Sequence[float]]], None] = lambda _moments: None,
    ) -> list[list[float]]:
        """Answer every prompt with so many tokens, all at once, each in a sequence of its own.

        Gives the moments at which each one's tokens came (seconds of `time.monotonic`), and tells `on_step` those so
        far. Raises EngineFault where llama.cpp has no room or dies, and Cancelled.
        """
        moments: list[list[float]] = [[] for _ in prompts]
        self._ask({"prompts": [list(prompt) for prompt in prompts], "generate": tokens})
        while True:
            answer = self._answer(lambda: on_step(moments))
            for index in answer.get("answered", ()):
                moments[index].append(answer["at"])
            if "refused" in answer:
                raise _refusal(answer["refused"])
            if "done" in answer:
                return moments
            self.pause(0)
            on_step(moments)


def library_refusal(launch: Launch) -> str:
    """What the library cannot do of a launch, in a sentence; empty where it can do all of it."""
    if launch.spec_type != "none":
        return f"{LIBRARY_NAME} makes no second context that guesses ahead."
    if launch.mmproj is not None:
        return f"{LIBRARY_NAME} is measured without a projector: images are llama-server's."
    if launch.embeddings:
        return f"{LIBRARY_NAME} is measured with answers, not with embeddings."
    return ""


def _refusal(code: int) -> EngineFault:
    if code == _NO_ROOM:
        return EngineFault(
            f"{LIBRARY_NAME} found no room in the cache for what everyone had said.",
            "Give it more --context, or fill less of it (--fill).",
            kind="context",
        )
    return EngineFault(f"{LIBRARY_NAME} could not decode a batch (llama_decode: {code}).", kind="answer")


def _threads() -> int:
    """As many as llama-server takes unasked: one for each core (`common/common.cpp: cpu_get_num_math`)."""
    import psutil

    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else cores
    return max(1, min(cores, allowed))
