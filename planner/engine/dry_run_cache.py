"""Answers that were given before, kept under model, build and launch: in memory, and on disk between runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from planner.engine.dry_figures import DryFigure, DryRun
from planner.launch import Launch
from planner.model.fingerprint import fingerprint
from planner.model.model import Model

_VERSION = 2
_MOST_BYTES = 8 << 20
"""A file that has grown larger is begun anew."""


def default_path() -> Path:
    """The file in the person's cache."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("planner", appauthor=False)) / "dry_runs.jsonl"


class DryRunCache:
    """What was answered. A file that cannot be read or written is as good as none: it only saves time."""

    def __init__(self, path: Path | None = None) -> None:
        """`path` is the file; the one in the person's cache by default."""
        self._path = path or default_path()
        self._answers: dict[str, DryRun] | None = None

    def get(self, key: str) -> DryRun | None:
        """The answer kept under this key."""
        return self._loaded().get(key)

    def put(self, key: str, answer: DryRun) -> None:
        """Keep an answer; a refusal only as long as the program runs, since memory may be what was missing."""
        self._loaded()[key] = answer
        if answer.refusal:
            return
        line = json.dumps({"version": _VERSION, "key": key, "answer": asdict(answer)}, separators=(",", ":"))
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh = not self._path.exists() or self._path.stat().st_size > _MOST_BYTES
            with self._path.open("w" if fresh else "a", encoding="utf-8") as file:
                file.write(f"\n{line}\n")  # after whatever a killed program left unfinished

    def _loaded(self) -> dict[str, DryRun]:
        if self._answers is None:
            self._answers = dict(_read(self._path))
        return self._answers


def _read(path: Path) -> list[tuple[str, DryRun]]:
    try:
        lines = path.read_bytes().splitlines() if path.is_file() else []
    except OSError:
        return []
    answers = []
    for line in lines:
        with contextlib.suppress(ValueError, OverflowError, KeyError, TypeError, AttributeError):
            entry = json.loads(line)
            if entry["version"] == _VERSION:
                answers.append((str(entry["key"]), _answer(entry["answer"])))
    return answers


def _answer(document: dict[str, Any]) -> DryRun:
    figures = tuple(
        DryFigure(
            device=str(figure["device"]),
            components=tuple(figure["components"]),
            size_bytes=int(figure["size_bytes"]),
            low_bytes=int(figure["low_bytes"]),
            high_bytes=int(figure["high_bytes"]),
        )
        for figure in document["figures"]
    )
    return DryRun(way=document["way"], build=str(document["build"]), figures=figures)


def answer_key(model: Model, build: str, launch: Launch) -> str:
    """What an answer is kept under: the model with its hyperparameters, the build, the launch."""
    text = f"{fingerprint(model)} {_hyperparameters(model)} {build} {json.dumps(asdict(launch), sort_keys=True)}"
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=64)
def _hyperparameters(model: Model) -> str:
    prefix = f"{model.architecture}."
    return repr(sorted((key, value) for key, value in model.metadata.items() if key.startswith(prefix)))
