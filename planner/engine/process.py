"""A process with llama.cpp under our control: started, its log read, watched, and certain to end with us."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from planner.engine.child import before_exec, group_keeper, interrupts_held_back, signal_group
from planner.engine.environment import without_settings
from planner.engine.faults import EngineFault, diagnose, own_words
from planner.engine.log import EngineLog, plain_line, read_line
from planner.engine.log_text import LogText
from planner.engine.oom import OomKills, count_kills, kills_since
from planner.errors import EngineError
from planner.keeper import Keeper

POLL_S = 0.05
QUIET_S = 1.0
"""A log that says nothing new for so long, on a busy machine too, has been read to its end."""
NOISE_S = 30.0
"""One that never falls silent is not waited for any longer."""
_LONGEST_LINE = 1 << 20
STOP_GRACE_S = 2.0
"""How long a server may take to end after an interrupt, before it is killed. An idle one takes 0.05 seconds;
one that reads a long prompt does not listen until it has read it, and has nothing to lose."""


class Cancelled(Exception):
    """The person asked to stop; everything that was started has ended."""


class EngineProcess(ABC):
    """A running program that has llama.cpp and tells its log; use it as a context manager, so that it always ends.

    `cancelled` is asked during every wait; when it says yes, `Cancelled` is raised.
    """

    name = "llama-server"
    """What it is called in sentences."""
    _stdin = subprocess.DEVNULL
    _stderr = subprocess.STDOUT
    """Where the log comes: with all that it prints, or (`PIPE`) alone."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        ready_timeout_s: float,
        cancelled: Callable[[], bool] = lambda: False,
        stop_grace_s: float | None = None,
    ) -> None:
        """`command` is the program and its arguments.

        `stop_grace_s` is how long it may take to end after an interrupt (`STOP_GRACE_S`); 0 kills it at once.
        """
        self._command = list(command)
        self._ready_timeout_s = ready_timeout_s
        self._cancelled = cancelled
        self._stop_grace_s = stop_grace_s
        self._text = LogText()
        self._log = EngineLog()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._keeper: Keeper | None = None
        self._kills_before: OomKills = {}
        self._ended_for: EngineFault | None = None

    def __enter__(self) -> Self:
        try:
            self._start(self._whole_command())
            self._reader = threading.Thread(target=self._read, name=f"{self.name} log", daemon=True)
            self._reader.start()
        except BaseException:
            self.stop()
            raise
        return self

    def _whole_command(self) -> list[str]:
        return self._command

    def _environment(self) -> dict[str, str]:
        return without_settings(os.environ)

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether the model is loaded and everything may be asked."""

    def _start(self, command: list[str]) -> None:
        self._kills_before = count_kills()
        # An interrupt before Popen returns would leave a server behind that nobody knows of.
        with interrupts_held_back() as mask:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=self._stdin,
                    stdout=subprocess.PIPE,
                    stderr=self._stderr,
                    text=True,
                    encoding="utf-8",
                    errors="replace",
                    env=self._environment(),
                    # Its own session: Ctrl-C reaches us alone, and we end the server in order.
                    start_new_session=True,
                    preexec_fn=before_exec(mask),
                )
            except OSError as error:
                raise EngineError(f"{command[0]} cannot be started: {error.strerror}.") from None
            self._keeper = group_keeper(self._process.pid)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._running.pid

    @property
    def log(self) -> EngineLog:
        """What the log has said so far."""
        with self._lock:
            return self._log

    @property
    def log_text(self) -> str:
        """The log so far; of a very long one its head and its tail."""
        with self._lock:
            return str(self._text)

    @property
    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

    def _read(self) -> None:
        stream = self._running.stderr or self._running.stdout
        if stream is None:
            return
        while line := plain_line(stream.readline(_LONGEST_LINE)):
            with self._lock:
                self._text.add(line)
                self._log = read_line(self._log, line)

    def wait_ready(self, on_wait: Callable[[], None] = lambda: None) -> None:
        """Wait until the model is loaded and the log of it read, calling `on_wait` meanwhile.

        Raises EngineError when the server dies before, or never gets there.
        """
        deadline = time.monotonic() + self._ready_timeout_s
        while not self._is_ready():
            self.check_alive()
            if time.monotonic() > deadline:
                said = own_words(self.log_text) or "nothing"
                raise EngineFault(
                    f"{self.name} was not ready after {self._ready_timeout_s:g} seconds. It last said: {said}.",
                    "Give it more time with --ready-timeout SECONDS.",
                    kind="hang",
                )
            on_wait()
            self.pause(POLL_S)
        self._await_log(QUIET_S, lambda: self.log.loaded)

    def quiet_log(self, quiet_s: float) -> EngineLog:
        """The log, once it has said nothing new for so many seconds."""
        self._await_log(quiet_s, lambda: False)
        return self.log

    def _await_log(self, quiet_s: float, complete: Callable[[], bool]) -> None:
        # llama.cpp writes its log in a thread of its own and we read it in another: both come later than the
        # answer to a request.
        known = self._text.count
        quiet_since = time.monotonic()
        latest = quiet_since + quiet_s + NOISE_S
        while not complete() and time.monotonic() < min(quiet_since + quiet_s, latest):
            self.pause(POLL_S)
            if (count := self._text.count) != known:
                known, quiet_since = count, time.monotonic()

    def pause(self, seconds: float) -> None:
        """Wait, but no longer than until the person asks to stop or `end_for` was called."""
        if self._ended_for is not None:
            raise self._ended_for
        if self._cancelled():
            raise Cancelled
        time.sleep(seconds)

    def end_for(self, fault: EngineFault) -> None:
        """End it at once, from any thread. Whoever waits for it gets the fault."""
        self._ended_for = self._ended_for or fault
        if self._process is not None and self._process.poll() is None:
            signal_group(self._process, "SIGKILL")

    def has_ended(self) -> bool:
        """Whether the server has ended; its log is complete then."""
        if self._running.poll() is None:
            return False
        if self._reader is not None:
            self._reader.join(timeout=QUIET_S)
        return True

    def check_alive(self) -> None:
        """Raise EngineFault with the server's own words if it has ended, or with why it was ended."""
        if self._ended_for is not None:
            raise self._ended_for
        if self.has_ended():
            oom = kills_since(self._kills_before, count_kills())
            raise diagnose(self._running.returncode, self.log_text, oom).fault(self.name)

    def stop(self) -> None:
        """End the server: an interrupt first, so that it cleans up, then by force. Safe to call twice."""
        process = self._process
        if process is None:
            return
        try:
            grace_s = STOP_GRACE_S if self._stop_grace_s is None else self._stop_grace_s
            if grace_s and process.poll() is None:
                signal_group(process, "SIGINT")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=grace_s)
        finally:  # also when a second Ctrl-C comes while we wait
            signal_group(process, "SIGKILL")
            process.wait()
            if self._keeper is not None:
                self._keeper.dismiss()
        if self._reader is not None:
            self._reader.join(timeout=2)
            if self._reader.is_alive():
                return  # something else holds the pipe open; closing it here would wait for that
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):
                    stream.close()
