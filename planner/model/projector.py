"""The file of a projector for images (`--mmproj`): an image encoder and what turns its output into tokens."""

from __future__ import annotations

from pathlib import Path

from planner.errors import ModelError
from planner.model.model import Model

ARCHITECTURE = "clip"


def open_projector(path: str | Path, *, header_only: bool = False) -> Model:
    """Read the header of a projector. Raises ModelError as `Model.open` does, and where it is a model of its own."""
    opened = Model.open(path, header_only=header_only)
    if opened.architecture != ARCHITECTURE:
        raise ModelError(
            f"{path} is a {opened.architecture} model and no projector (--mmproj), so llama-server would not start.",
            "The name of a projector mostly begins with mmproj.",
        )
    return opened
