"""An engine at work, as a measurement sees it: one interface to a llama-server and to the library in a child."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from planner.engine.arguments import server_arguments
from planner.engine.faults import EngineFault
from planner.engine.find import Engine
from planner.engine.library import AnyEngine
from planner.engine.library_run import LibraryRun, library_refusal
from planner.engine.log import EngineLog
from planner.engine.server import LlamaServer
from planner.errors import UsageError
from planner.launch import Launch
from planner.measure.measurement import Soak, Speed
from planner.measure.soak import Conversations, soak
from planner.measure.users import OnServing, Workload, cut_to, serve, speed_of, text_of
from planner.model.model import Model


class Runner(Protocol):
    """A launch of a model at work. A context manager: it has ended when the block is left, whatever happened."""

    command: tuple[str, ...]
    """Program and arguments that ran; empty where the settings were handed to the library."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def pid(self) -> int:
        """The process that holds the memory, or one that started it."""

    @property
    def log(self) -> EngineLog:
        """What llama.cpp's log has said so far."""

    @property
    def log_text(self) -> str:
        """llama.cpp's log so far."""

    def wait_ready(self, on_wait: Callable[[], None]) -> None:
        """Wait until the model is loaded. Raises EngineError where it never is, and Cancelled."""

    def quiet_log(self, quiet_s: float) -> EngineLog:
        """The log, once it has said nothing new for so many seconds."""

    def pause(self, seconds: float) -> None:
        """Wait. Raises Cancelled, and what `end_for` was given."""

    def end_for(self, fault: EngineFault) -> None:
        """End it at once, from any thread; whoever waits for it gets the fault."""

    def serve(self, users: int, workload: Workload, seed: int, on_serving: OnServing) -> Speed:
        """Answer so many people at once, each in a slot of their own. Raises EngineError and Cancelled."""

    def soak(self, asked: Conversations) -> Soak:
        """Conversation after conversation. Raises EngineError and Cancelled."""


class ServerRunner(LlamaServer):
    """A llama-server that people ask over HTTP."""

    def __init__(
        self,
        engine: Engine,
        model: Model,
        launch: Launch,
        *,
        ready_timeout_s: float,
        cancelled: Callable[[], bool],
    ) -> None:
        self.command = (str(engine.path), *server_arguments(launch, model.path.absolute(), engine.flags))
        super().__init__(self.command, ready_timeout_s=ready_timeout_s, cancelled=cancelled)

    def serve(self, users: int, workload: Workload, seed: int, on_serving: OnServing) -> Speed:
        """One request for each person."""
        return serve(self, users, workload, seed, on_serving)

    def soak(self, asked: Conversations) -> Soak:
        """Conversations that its prompt cache keeps."""
        return soak(self, asked)


class LibraryRunner(LibraryRun):
    """The library in a child that decodes everyone's tokens in one batch."""

    command: tuple[str, ...] = ()

    def serve(self, users: int, workload: Workload, seed: int, on_serving: OnServing) -> Speed:
        """One sequence for each person."""
        count = workload.prompt_tokens
        prompts = [cut_to(count, self.tokenize(text_of(count, seed + user)), self.name) for user in range(users)]

        def report(moments: Sequence[Sequence[float]]) -> None:
            answered = sum(len(of_one) == workload.generated_tokens for of_one in moments)
            on_serving(all(moments), answered)

        start = time.monotonic()
        return speed_of(workload, start, self.generate(prompts, workload.generated_tokens, report))

    def soak(self, _: Conversations) -> Soak:
        """Refuse: conversations leave nothing behind that a library would keep."""
        raise UsageError(NO_SOAK, _NAME_A_SERVER)


NO_SOAK = "llama-cpp-python keeps no prompts, so there is nothing that conversations could make grow."
_NAME_A_SERVER = "Leave out --soak, or name a llama-server with --engine PATH."


def check_able(engine: AnyEngine, launch: Launch, *, soaked: bool) -> None:
    """Raise UsageError where this engine cannot be measured so; nothing was started."""
    if isinstance(engine, Engine):
        return
    if soaked:
        raise UsageError(NO_SOAK, _NAME_A_SERVER)
    if refusal := library_refusal(launch):
        raise UsageError(refusal, "Name a llama-server with --engine PATH.")


def runner_of(
    engine: AnyEngine,
    model: Model,
    launch: Launch,
    *,
    ready_timeout_s: float,
    cancelled: Callable[[], bool],
) -> Runner:
    """What runs this launch; it starts when the `with` block is entered."""
    if isinstance(engine, Engine):
        return ServerRunner(engine, model, launch, ready_timeout_s=ready_timeout_s, cancelled=cancelled)
    return LibraryRunner(model.path.absolute(), launch, ready_timeout_s=ready_timeout_s, cancelled=cancelled)
