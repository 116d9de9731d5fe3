"""Ghosts: GGUF files with a model's true header and a hole where its weights are.

llama.cpp opens, allocates and runs a ghost like the real file, so a launch can be measured before the model
is downloaded. What a ghost says means nothing: every weight reads as zero. Only the header is ever written: a
ghost takes a few megabytes of disk, however large the model, or is refused.
"""

from __future__ import annotations

from planner.model.ghost.entry import ghost_tensors
from planner.model.ghost.files import dry_file, temporary_ghost, write_ghost
from planner.model.marks import GHOST_KEY

__all__ = ["GHOST_KEY", "dry_file", "ghost_tensors", "temporary_ghost", "write_ghost"]
