"""The record: every measurement, kept on disk, and what was learned from them.

One JSON document per line, only ever appended to, so that a cut-off line costs itself and nothing else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from planner.errors import PlannerError
from planner.hardware import kind_of_device
from planner.memory import MemoryPlan
from planner.model import Model

if TYPE_CHECKING:
    from planner.reconcile.reconciliation import Reconciliation

SCHEMA_VERSION = 1
_ON_LINUX: bool = sys.platform == "linux"
DATA_VARIABLE = "PLANNER_DATA_DIR"
"""Environment variable that names the folder of the record."""


def default_folder() -> Path:
    """The folder of the record: the platform's place for a program's data."""
    named = os.environ.get(DATA_VARIABLE)
    if named:
        return Path(named)
    if _ON_LINUX:
        # What platformdirs would say, whose import takes longer than a prediction.
        return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "planner"
    import platformdirs

    return Path(platformdirs.user_data_dir("planner", appauthor=False))


def fingerprint(model: Model) -> str:
    """What a learned value is kept under: the model's tensors and architecture, wherever the file lies."""
    import hashlib  # like json below: a prediction before the first measurement starts faster without

    # A ghost's vocabulary is made up, so what it teaches is not true of the real file.
    digest = hashlib.sha256(f"{model.architecture} {model.is_ghost}".encode())
    for tensor in model.tensors:
        digest.update(f"{tensor.name}{tensor.shape}{tensor.type.name}".encode())
    return digest.hexdigest()[:16]


def used_devices(plan: MemoryPlan) -> list[str]:
    """The kinds of accelerators that a launch uses, sorted."""
    return sorted({kind_of_device(device.name) for device in plan.devices if not device.is_cpu})


@dataclass(frozen=True, slots=True)
class Record:
    """The measurements of this machine."""

    folder: Path

    @property
    def path(self) -> Path:
        """The file that they are appended to."""
        return self.folder / "measurements.jsonl"

    def append(self, model: Model, reconciliation: Reconciliation, document: dict[str, Any]) -> None:
        """Keep one run: `document` is its whole report. On disk when this returns."""
        import json

        entry = {
            "schema_version": SCHEMA_VERSION,
            "model": fingerprint(model),
            "engine": reconciliation.measurement.engine_build,
            "devices": used_devices(reconciliation.plan),
            "overhead_bytes": reconciliation.learned_overhead_bytes,
            "run": document,
        }
        line = json.dumps(entry, separators=(",", ":")) + "\n"
        with self._appending() as file:
            # A line that a killed program left unfinished must not swallow the next one.
            if file.tell() and not _ends_with_newline(file.name):
                line = "\n" + line
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def check_writable(self) -> None:
        """Raise PlannerError where nothing can be kept: to be known before a measurement, not after it."""
        with self._appending():
            pass

    @contextmanager
    def _appending(self) -> Iterator[BinaryIO]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+") as file:
                yield file
        except OSError as error:
            raise PlannerError(
                f"Measurements cannot be kept in {self.path}: {error.strerror}.",
                f"Name another folder with {DATA_VARIABLE}.",
            ) from None

    def learned_overhead(self, model: Model, engine_build: str | None, devices: Sequence[str] = ()) -> int | None:
        """What the latest run of this model held beside its buffers, in bytes; None before the first.

        `engine_build` None takes the latest run with any engine. `devices` are the kinds of accelerators used,
        whose drivers take host memory, too.
        """
        if not self.path.exists():
            return None
        key = fingerprint(model)
        latest: int | None = None
        for entry in self._entries():
            known = entry.get("model") == key and entry.get("devices", []) == list(devices)
            if known and engine_build in (None, entry.get("engine")):
                overhead = entry.get("overhead_bytes")
                latest = overhead if isinstance(overhead, int) else latest
        return latest

    def runs(self) -> Iterator[dict[str, Any]]:
        """The report of every run that is kept, the oldest first."""
        for entry in self._entries():
            if isinstance(entry.get("run"), dict):
                yield entry["run"]

    def _entries(self) -> Iterator[dict[str, Any]]:
        import json

        try:
            lines = self.path.read_bytes().splitlines()
        except OSError:
            return
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # cut off by a kill
            if isinstance(entry, dict) and entry.get("schema_version") == SCHEMA_VERSION:
                yield entry


def _ends_with_newline(path: str) -> bool:
    with open(path, "rb") as file:  # noqa: PTH123 - the name of an open file
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
