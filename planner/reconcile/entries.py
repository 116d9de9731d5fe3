"""The lines of the record as values: those of this version, those of the first one, and those that are not known.

A line that is cut off, damaged or of a form that says nothing here is passed over; one of a later version is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from planner.reconcile.history import History, Run, without
from planner.reconcile.lessons import Lessons

_FIRST, _PRESENT = 1, 2
_NUMBERS = ("predicted_bytes", "users", "prompt_tokens", "generated_tokens_per_s", "one_generated_tokens_per_s")
_WORDS = ("id", "at", "model", "model_name", "architecture", "engine", "machine", "verdict")


@dataclass(slots=True)
class Entries:
    """What was read so far, oldest first."""

    runs: list[Run] = field(default_factory=list)
    bodies: list[tuple[str, dict[str, Any], str]] = field(default_factory=list)
    """Id, report and log."""
    forgotten: set[str] = field(default_factory=set)
    later: dict[str, int] = field(default_factory=dict)

    def history(self) -> History:
        """Without the bodies."""
        return History(runs=without(self.runs, self.forgotten), later=self.later)


def read_entries(lines: Iterable[bytes]) -> Entries:
    """Everything that these lines say."""
    import json

    entries = Entries()
    for line in lines:
        try:
            entry = json.loads(line)
            if isinstance(entry, dict):
                _take(entries, entry, line)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # cut off by a kill, or damaged
    return entries


def _take(entries: Entries, entry: dict[str, Any], line: bytes) -> None:
    version = entry["schema_version"]
    if not isinstance(version, int):
        return
    if version > _PRESENT:
        if "body_of" not in entry:
            entries.later[str(entry["id"])] = version
    elif "body_of" in entry:
        if not isinstance(entry["run"], dict) or not isinstance(entry["log"], str):
            raise TypeError("a report is no document, or its log no text")
        entries.bodies.append((entry["body_of"], entry["run"], entry["log"]))
    elif version == _FIRST:
        run = _first_version(entry, line)
        entries.runs.append(run)
        entries.bodies.append((run.id, entry["run"], ""))
    elif entry["kind"] == "run":
        entries.runs.append(_run(entry))
    elif entry["kind"] == "forget":
        entries.forgotten.add(entry["run"])


def _run(entry: dict[str, Any]) -> Run:
    measured = entry["measured_bytes"]
    if not all(isinstance(entry[name], (int, float)) for name in _NUMBERS):
        raise TypeError("a figure is no number")
    if not all(isinstance(entry[name], str) for name in _WORDS) or not isinstance(measured, (int, type(None))):
        raise TypeError("a name is no text")
    context, kinds = dict(entry["context"]), tuple(entry["kinds"])
    if not all(isinstance(tokens, int) for tokens in context.values()) or not all(isinstance(k, str) for k in kinds):
        raise TypeError("a context has no figures, or a back end no name")
    return Run(
        **{name: entry[name] for name in (*_WORDS, *_NUMBERS)},
        measured_bytes=measured,
        kinds=kinds,
        launch=dict(entry["launch"]),
        context=context,
        lessons=Lessons.read(entry["lessons"]),
    )


def _model_of(command: str) -> str:
    """The name of the file that a command serves."""
    import shlex

    words = shlex.split(command)
    return PurePath(words[words.index("--model") + 1]).stem


def _first_version(entry: dict[str, Any], line: bytes) -> Run:
    """A line of version 1: it held the report, without the log, and had no id."""
    import hashlib

    predicted, measured = entry["run"]["predicted"], entry["run"]["measured"]
    learned = {"overhead_bytes": entry["overhead_bytes"], "drivers": (), "compute": ()}
    return Run(
        id=hashlib.sha256(line.strip()).hexdigest()[:8],
        at=measured["started_at"],
        model=entry["model"],
        model_name=_model_of(entry["run"]["command"]),
        architecture="",
        engine=entry["engine"],
        machine="",
        kinds=tuple(entry["devices"]),
        launch=dict(predicted["launch"]),
        context=dict(predicted["context"] or {}),
        verdict=predicted["verdict"],
        predicted_bytes=entry["run"]["reconciliation"]["resident"]["predicted_bytes"],
        measured_bytes=measured["steady"]["resident_bytes"],
        users=measured["everyone"]["users"],
        prompt_tokens=measured["everyone"]["prompt_tokens"],
        generated_tokens_per_s=measured["everyone"]["generated_tokens_per_s"],
        one_generated_tokens_per_s=measured["one"]["generated_tokens_per_s"],
        lessons=Lessons.read(learned),
    )
