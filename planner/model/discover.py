"""Finding the model files that are on this machine already."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from planner.model.marks import is_ghost_name

MAX_DEPTH = 6
"""Folders below a usual one that are looked into: a hub cache nests five deep."""
MAX_FILES = 500

_LATER_SHARD = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
"""Names of the parts of a split model but the first, which stands for all of them."""
_COMPANIONS = ("mmproj", "ggml-vocab")
"""Names of files that are GGUF and no model of their own."""


def usual_folders(environment: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Where people and programs keep GGUF files; the current folder comes first."""
    environment = os.environ if environment is None else environment
    home = Path(environment.get("HOME") or environment.get("USERPROFILE") or "~").expanduser()
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    hub = environment.get("HF_HUB_CACHE") or environment.get("HF_HOME", str(cache / "huggingface")) + "/hub"
    return (
        *_current_folder(),
        home / "models",
        Path(environment.get("LLAMA_CACHE") or cache / "llama.cpp"),
        Path(hub),
        home / ".lmstudio" / "models",
        cache / "lm-studio" / "models",
        home / ".local" / "share" / "models",
        Path("/models"),
        Path("/srv/models"),
    )


def _current_folder() -> tuple[Path, ...]:
    try:
        return (Path.cwd(),)
    except OSError:
        return ()  # it was deleted under us


def find_models(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Every GGUF file that can be a model, in the order of the folders; unreadable folders are passed over.

    Ghosts and files in hidden folders below a usual one are left out.
    """
    found: dict[Path, Path] = {}
    for folder in folders:
        for path in _gguf_files(folder, 0 if (folder,) == _current_folder() else MAX_DEPTH):
            # The hub keeps one file under several names.
            found.setdefault(path.resolve(), path)
            if len(found) >= MAX_FILES:
                return tuple(found.values())
    return tuple(found.values())


def _gguf_files(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                if depth > 0 and not entry.name.startswith("."):
                    yield from _gguf_files(Path(entry.path), depth - 1)
            elif _may_be_model(entry.name) and entry.is_file():
                yield Path(entry.path)
        except OSError:
            continue


def _may_be_model(name: str) -> bool:
    lowered = name.lower()
    return (
        lowered.endswith(".gguf")
        and not is_ghost_name(lowered)
        and not lowered.startswith(_COMPANIONS)
        and "mmproj" not in lowered
        and not _LATER_SHARD.search(lowered)
    )
