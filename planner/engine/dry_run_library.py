"""Dry runs by the library: llama-cpp-python in a child process that keeps the model open.

llama.cpp then makes contexts without allocating them (`no_alloc`), about 20 ms each, and logs what they would
take. Weights are not among what it logs so.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from planner.engine.dry_figures import DryFigure, DryRun, summed
from planner.engine.library_process import LibraryProcess
from planner.engine.log import ROUNDING_BYTES, read_log
from planner.errors import EngineError
from planner.hardware import CPU_DEVICE
from planner.launch import Launch
from planner.memory.plan import Component
from planner.model.ghost import dry_file
from planner.model.model import Model
from planner.units import MIB

_PACKAGE = "llama_cpp"
_DISTRIBUTION = "llama-cpp-python"
_CHILD = Path(__file__).with_name("library_child.py")
_KV = re.compile(r"llama_kv_cache: size =\s*(?P<mib>\d+\.\d+) MiB")
_LOGGED: tuple[Component, ...] = ("state", "compute", "output")
"""What is logged per device, and truly so though nothing is allocated."""


def library_is_here() -> bool:
    """Whether llama-cpp-python is installed. It is not imported."""
    return importlib.util.find_spec(_PACKAGE) is not None


class Library:
    """llama-cpp-python, for many dry runs. Use it as a context manager, so that its process always ends.

    An abort inside llama.cpp costs the answer that it happened in, as an EngineError; the next is given.
    """

    def __init__(self) -> None:
        self.identity = _identity(library_folder())
        """What tells this build from another of the same version."""
        self.build = f"{_DISTRIBUTION} {importlib.metadata.version(_DISTRIBUTION)}"
        # -P: the folder of the child's file holds modules of ours, which are none of its.
        self._process = LibraryProcess((sys.executable, "-P", str(_CHILD)))
        self._files = ExitStack()
        self._dry: dict[Model, Path] = {}

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the child, and delete what was written for it."""
        self._process.close()
        self._files.close()

    @property
    def pid(self) -> int | None:
        """The process id of the child, while it runs."""
        return self._process.pid

    def describe(self) -> dict[str, Any]:
        """Its commit, back ends and devices. Raises EngineError where it does not run here."""
        return self._process.describe()

    def dry_run(self, model: Model, launch: Launch) -> DryRun:
        """What llama.cpp would reserve for this launch, to 0.01 MiB. Raises EngineError where it gives no answer."""
        if launch.spec_type != "none":
            raise EngineError(
                "llama-cpp-python makes no second context that guesses ahead.", "Ask a llama-server instead."
            )
        answer = self._process.ask(self._path(model), launch, dry=True)
        if answer.refusal:
            return DryRun(way="llama-cpp-python", build=self.build, refusal=" ".join(answer.refusal.split()))
        return DryRun(way="llama-cpp-python", build=self.build, figures=summed(_figures(answer.lines)))

    def _path(self, model: Model) -> Path:
        if model not in self._dry:
            self._dry[model] = self._files.enter_context(dry_file(model))
        return self._dry[model]


def library_folder() -> Path:
    """The folder of its shared libraries. Raises EngineError where it is not installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    folders = (spec.submodule_search_locations if spec else None) or ()
    if not folders:
        raise EngineError("llama-cpp-python is not installed.", "Install planner[llama-cpp-python], which compiles it.")
    return Path(next(iter(folders)), "lib")


def _identity(folder: Path) -> str:
    return " ".join(f"{path.name} {path.stat().st_mtime_ns}" for path in sorted(folder.glob("*")))


def _figures(lines: Sequence[str]) -> Iterator[DryFigure]:
    log = read_log(lines)
    on_device = any(buffer.placed_on != CPU_DEVICE for buffer in log.of_kind("compute"))
    for line in lines:
        # A cache that is not allocated is logged as one sum, whose parts on several devices stay unknown.
        if not on_device and (match := _KV.search(line)):
            yield _figure("kv", CPU_DEVICE, round(float(match["mib"]) * MIB))
    for kind in _LOGGED:
        for buffer in log.buffers:
            if buffer.kind == kind:
                yield _figure(kind, buffer.placed_on, buffer.size_bytes)


def _figure(component: Component, device: str, size_bytes: int) -> DryFigure:
    return DryFigure(
        device=device,
        components=(component,),
        size_bytes=size_bytes,
        low_bytes=max(0, size_bytes - ROUNDING_BYTES - 1),
        high_bytes=size_bytes + ROUNDING_BYTES + 1,
    )
