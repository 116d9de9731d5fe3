"""How a ghost is told from a model: by a key inside the file, and by the file's name."""

from __future__ import annotations

import re

GHOST_KEY = "planner.ghost"
"""The metadata key, true, by which a ghost is known."""

_NAME = re.compile(r"\.ghost(-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)


def ghost_name(stem: str, number: int = 1, count: int = 1) -> str:
    """The file name of a ghost, or of one part of it, by which llama.cpp finds the others."""
    return f"{stem}.ghost.gguf" if count == 1 else f"{stem}.ghost-{number:05d}-of-{count:05d}.gguf"


def is_ghost_name(name: str) -> bool:
    """Whether a file of this name or path is a ghost, or one part of it."""
    return _NAME.search(name) is not None
