"""A child process that has llama-cpp-python: asked by lines, started again when llama.cpp ended it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from planner.engine.child import before_exec, interrupts_held_back
from planner.engine.environment import without_settings
from planner.engine.faults import diagnose
from planner.engine.library_settings import context_settings, model_settings
from planner.errors import EngineError, ModelError
from planner.launch import Launch

ANSWER_TIMEOUT_S = 120.0
"""A dry run takes milliseconds, opening a model a second or two."""
CHILD_ENVIRONMENT = {"GGML_NO_BACKTRACE": "1", "PYTHONUTF8": "1"}
"""llama.cpp would start a debugger where it aborts."""


@dataclass(frozen=True, slots=True)
class LibraryAnswer:
    """What llama.cpp said about one launch."""

    lines: tuple[str, ...]
    refusal: str
    """Its errors where it opened no model or made no context; empty where it did."""


class LibraryProcess:
    """The child. It starts with the first question and ends with the `with` block, or when this process does."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        """`command` is the child with its arguments; `environment` is what it gets beside ours."""
        self._command = list(command)
        self._environment = {**CHILD_ENVIRONMENT, **(environment or {})}
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)

    def __enter__(self) -> LibraryProcess:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the child. Safe to call twice."""
        self._end()
        self._errors.close()

    @property
    def pid(self) -> int | None:
        """The child's process id, while it runs."""
        return None if self._process is None else self._process.pid

    def ask(self, path: Path, launch: Launch, *, devices: Sequence[str] | None = None, dry: bool) -> LibraryAnswer:
        """What llama.cpp says to this launch; `dry` allocates nothing.

        Raises EngineError where it died of it or gave no answer in time; the next question starts it anew.
        """
        request = {
            "path": str(path),
            "written": _written(path),
            "model": model_settings(launch, devices, dry=dry),
            "context": context_settings(launch),
        }
        answer = self._answer(json.dumps(request))
        return LibraryAnswer(tuple(answer["log"].splitlines()), answer["refusal"].strip())

    def describe(self) -> dict[str, Any]:
        """What the library says of itself. Raises EngineError where it does not run here."""
        return self._answer("{}")

    def _answer(self, request: str) -> dict[str, Any]:
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        late = threading.Event()
        timer = threading.Timer(self._timeout_s, _give_up, (process, late))
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(request + "\n")
                process.stdin.flush()
            line = process.stdout.readline()
        except BaseException:  # an answer that nobody waits for would be taken for the next one's
            self._end()
            raise
        finally:
            timer.cancel()
        if not line:
            raise self._death(late.is_set())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _start(self) -> subprocess.Popen[str]:
        self._errors.seek(0)
        self._errors.truncate()
        try:
            with interrupts_held_back() as mask:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    text=True,
                    encoding="utf-8",
                    env={**without_settings(os.environ), **self._environment},
                    start_new_session=True,  # Ctrl-C reaches us alone; the child ends when its input does
                    preexec_fn=before_exec(mask),
                )
        except OSError as error:
            raise EngineError(f"{self._command[0]} cannot be started: {error.strerror}.") from None
        return self._process

    def _death(self, late: bool) -> EngineError:
        process = self._process
        assert process is not None
        returncode = process.wait()
        self._errors.seek(0)
        said = self._errors.read()
        self._end()
        if late:
            return EngineError(f"llama-cpp-python gave no answer within {self._timeout_s:g} seconds.")
        return diagnose(returncode, said).fault("llama-cpp-python")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _written(path: Path) -> int:
    """When the file was last written: one that was replaced is opened anew."""
    try:
        return path.stat().st_mtime_ns
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from None


def _give_up(process: subprocess.Popen[str], late: threading.Event) -> None:
    late.set()
    process.kill()
