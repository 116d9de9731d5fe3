"""The record: every measurement, kept on disk with its log, and what was taken back of what it taught.

One file of JSON lines that is only ever appended to (`journal.py`). A run is two lines, written at once: its body (the
whole report and the log) and, after it, its head (what tables and predictions need), so that a prediction passes over
the bodies unread. A head says the version of its form and its id, and will do so in every version.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import PlannerError
from planner.hardware import CPU_DEVICE, Hardware, kinds_of_devices
from planner.memory import NOTHING_LEARNED, Learned
from planner.model import Model
from planner.model.fingerprint import fingerprint
from planner.reconcile.entries import Entries, read_entries
from planner.reconcile.history import History, Run, machine_key
from planner.reconcile.journal import Journal

if TYPE_CHECKING:
    from planner.reconcile.reconciliation import Reconciliation

SCHEMA_VERSION = 2
BODY_START = b'{"body_of":'
"""How the line of a body begins; the heads say everything that is needed without it."""
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


@dataclass(frozen=True, slots=True)
class Record:
    """The measurements of this machine."""

    folder: Path

    @property
    def path(self) -> Path:
        """The file that they are appended to."""
        return self.folder / "measurements.jsonl"

    def append(self, model: Model, reconciliation: Reconciliation, document: dict[str, Any]) -> str:
        """Keep one run and give it an id: `document` is its whole report. On disk when this returns."""
        import secrets

        run = secrets.token_hex(4)
        log = reconciliation.measurement.log_text
        body = {"body_of": run, "schema_version": SCHEMA_VERSION, "run": document, "log": log}
        self._write(body, _head(run, model, reconciliation))
        return run

    def forget(self, run: Run) -> None:
        """Take back what this run taught. The run itself stays."""
        import secrets

        entry = {"schema_version": SCHEMA_VERSION, "id": secrets.token_hex(4), "kind": "forget", "run": run.id}
        self._write(entry)

    def check_writable(self) -> None:
        """Raise PlannerError where nothing can be kept: to be known before a measurement, not after it."""
        self._write()

    def _write(self, *entries: dict[str, Any]) -> None:
        import json

        try:
            Journal(self.path).append([json.dumps(entry, separators=(",", ":")).encode() for entry in entries])
        except OSError as error:
            raise PlannerError(
                f"Measurements cannot be kept in {self.path}: {error.strerror}. What was there is still there.",
                f"Make room, or name another folder with {DATA_VARIABLE}.",
            ) from None

    def history(self) -> History:
        """All runs, oldest first. Raises PlannerError where there is a record that cannot be read."""
        return self._entries().history()

    def learned(self, model: Model, hardware: Hardware, engine: str | None = None) -> Learned:
        """What the runs teach about this model, machine and build (None: the latest run with any llama-server).
        Nothing where the record cannot be read: a prediction needs none.
        """
        try:
            return self.history().learned(model, hardware, engine)
        except PlannerError:
            return NOTHING_LEARNED

    def find(self, beginning: str) -> Run:
        """The run whose id begins so. Raises PlannerError where there is none, or more than one."""
        history = self.history()
        found = [run for run in history.runs if run.id.startswith(beginning.lower())]
        if len(found) == 1:
            return found[0]
        if found:
            raise PlannerError(f"{len(found)} runs begin with {beginning!r}.", "Write more of the id.")
        for entry, version in history.later.items():
            if entry.startswith(beginning.lower()):
                raise PlannerError(
                    f"Run {entry} was recorded by a later planner, in version {version} of the record, and this one "
                    f"reads up to version {SCHEMA_VERSION}.",
                    "Update planner to see it.",
                )
        raise PlannerError(f"No run in the record begins with {beginning!r}.", "`planner history` lists them.")

    def bodies(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Id, report and log of every run, oldest first. The log is empty where an earlier version kept none."""
        entries = self._entries(BODY_START)
        whole = {run.id for run in entries.runs}
        yield from (body for body in entries.bodies if body[0] in whole)

    def runs(self) -> Iterator[dict[str, Any]]:
        """The report of every run that is kept, the oldest first."""
        for _, report, _ in self.bodies():
            yield report

    def body(self, run: Run) -> tuple[dict[str, Any], str]:
        """Report and log of one run. Raises PlannerError where they are damaged."""
        for entry, document, log in self._entries(BODY_START + f'"{run.id}"'.encode()).bodies:
            if entry == run.id:
                return document, log
        raise PlannerError(f"The report of run {run.id} cannot be read any more: its line in {self.path} is damaged.")

    def _entries(self, bodies: bytes = b"\n") -> Entries:
        """All heads, and the bodies that begin so: none, if nothing else is said."""
        lines = Journal(self.path).lines()
        try:
            return read_entries(line for line in lines if line.startswith(bodies) or not line.startswith(BODY_START))
        except OSError as error:
            raise PlannerError(
                f"The record in {self.path} cannot be read: {error.strerror}.",
                f"Mend its permissions, or name another folder with {DATA_VARIABLE}.",
            ) from None


def _head(run: str, model: Model, reconciliation: Reconciliation) -> dict[str, Any]:
    plan, measurement = reconciliation.plan, reconciliation.measurement
    return {
        "schema_version": SCHEMA_VERSION,
        "id": run,
        "kind": "run",
        "at": measurement.started_at,
        "model": fingerprint(model),
        "model_name": model.name,
        "architecture": model.architecture,
        "engine": measurement.engine_build,
        "machine": machine_key(plan.hardware),
        "kinds": kinds_of_devices(device.name for device in plan.devices),
        "launch": asdict(measurement.launch),
        "context": {} if plan.context is None else asdict(plan.context),
        "verdict": plan.verdict.value,
        "predicted_bytes": plan.resident_bytes(device=CPU_DEVICE),
        "measured_bytes": measurement.steady.resident_bytes,
        "users": measurement.everyone.users,
        "prompt_tokens": measurement.everyone.prompt_tokens,
        "generated_tokens_per_s": measurement.everyone.generated_tokens_per_s,
        "one_generated_tokens_per_s": measurement.one.generated_tokens_per_s,
        "lessons": reconciliation.lessons.document(),
    }
