"""llama-cpp-python as an engine to measure with: what it is, where no llama-server is to be had or it was asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from planner.engine.dry_run_library import Library, library_folder, library_is_here
from planner.engine.find import ENGINE_VARIABLE, Engine, EngineDevice, find_engine, looked_at_again, with_backends
from planner.errors import EngineError
from planner.launch import Launch
from planner.memory.program import LIBRARY_NAME, Program, library_program


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledLibrary:
    """The llama-cpp-python of this Python."""

    path: Path
    """The folder of its shared libraries."""
    build: str
    """`llama-cpp-python 0.3.36`: what learned values are kept under."""
    identity: str
    """What tells it from another of the same version."""
    commit: str
    """Of the ggml in it, as it says itself."""
    backends: tuple[str, ...]
    """Those that have a device here."""
    devices: tuple[EngineDevice, ...] = ()
    instead_of: str = ""
    """Why no llama-server is used, in a sentence; empty where the library was asked for."""
    source: Literal["library"] = "library"

    @property
    def version(self) -> str:
        """Build and commit."""
        return f"{self.build} (commit {self.commit})"

    @property
    def name(self) -> str:
        """What it is."""
        return self.version

    @property
    def title(self) -> str:
        """The same with its back ends."""
        return with_backends(self.name, self.backends)

    @property
    def program(self) -> Program:
        """What it holds itself."""
        return library_program(self.build.rpartition(" ")[2])

    def launch(self, launch: Launch) -> Launch:
        """The launch without what a server alone has: it keeps no prompts and makes no checkpoints."""
        return replace(launch, cache_ram=0, ctx_checkpoints=0)


AnyEngine = Engine | InstalledLibrary
"""What a launch can be measured with."""


def identify_library() -> InstalledLibrary:
    """Ask the library what it is, in a child process. Raises EngineError where it is missing or does not run here."""
    with Library() as library:
        described = library.describe()
        return InstalledLibrary(
            path=library_folder(),
            build=library.build,
            identity=library.identity,
            commit=str(described["commit"]),
            backends=tuple(described["backends"]),
            devices=tuple(EngineDevice(**device) for device in described["devices"]),
        )


def find_any_engine(option: Path | None = None, *, stands_in: bool = True) -> AnyEngine:
    """The llama-server to use (`find_engine`), or the library: where it is named, and where there is no server.

    `stands_in` is whether it may be taken unasked. Raises EngineError where there is neither, or where the one that
    was named does not run.
    """
    named = os.environ.get(ENGINE_VARIABLE, "") if option is None else str(option)
    if named == LIBRARY_NAME:
        return identify_library()
    try:
        return find_engine(option)
    except EngineError as error:
        if named or not stands_in or not library_is_here():
            raise
        return _library_instead(error)


def look_again(engine: AnyEngine) -> AnyEngine:
    """The engine with its devices as they are now. Raises EngineError where it no longer runs."""
    if isinstance(engine, Engine):
        return looked_at_again(engine)
    return replace(identify_library(), instead_of=engine.instead_of)


def _library_instead(of: EngineError) -> InstalledLibrary:
    try:
        return replace(identify_library(), instead_of=of.message)
    except EngineError as error:
        raise EngineError(f"{of.message} {error.message}", of.hint) from None
