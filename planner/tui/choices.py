"""What can be chosen in the list of models: files found on this machine, else ghosts of the catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from planner.errors import PlannerError
from planner.model import Model
from planner.model.catalogue import CatalogueEntry, load_catalogue
from planner.model.discover import find_models, usual_folders
from planner.model.gguf import DEFAULT_ALIGNMENT, GgufHeader
from planner.model.ghost import GHOST_KEY, ghost_tensors, temporary_ghost


@dataclass(frozen=True, eq=False, kw_only=True)
class Choice:
    """One row of the list."""

    name: str
    """The file's name, which tells the quantisation too; the title of a ghost."""
    model: Model | None
    """None where the file cannot be read."""
    problem: str = ""
    """Why it cannot be read; empty when it can."""
    entry: CatalogueEntry | None = None
    """The catalogue's entry behind a ghost; None for a file."""


def find_choices() -> Iterator[Choice]:
    """Every model file of this machine, else ghosts; files that cannot be read come last."""
    damaged = []
    usable = False
    for path in find_models(usual_folders()):
        choice = file_choice(path)
        if choice.model is None:
            damaged.append(choice)
        else:
            usable = True
            yield choice
    if not usable:
        yield from ghost_choices()
    yield from damaged


def file_choice(path: Path) -> Choice:
    """The row of one file."""
    try:
        return Choice(name=path.name, model=Model.open(path))
    except PlannerError as error:
        return Choice(name=path.name, model=None, problem=str(error))
    except OSError as error:
        return Choice(name=path.name, model=None, problem=f"{path} cannot be read: {error.strerror}.")


def ghost_choices() -> Iterator[Choice]:
    """The models of the catalogue, as they would be read from their ghosts."""
    for entry in load_catalogue():
        yield Choice(name=entry.title, model=ghost_model(entry), entry=entry)


def ghost_model(entry: CatalogueEntry) -> Model:
    """The model that an entry's ghost would hold, without any file: enough to plan, not to measure."""
    return Model(
        path=Path(f"{entry.name}.ghost.gguf"),
        header=GgufHeader(
            version=3,
            metadata={**entry.metadata(), GHOST_KEY: True},
            tensors=ghost_tensors(entry),
            alignment=DEFAULT_ALIGNMENT,
            data_offset=0,
        ),
    )


@contextmanager
def on_disk(choice: Choice) -> Iterator[Model]:
    """The model with a file that llama-server can load; a ghost's is written now and deleted afterwards."""
    if choice.entry is not None:
        with temporary_ghost(choice.entry) as model:
            yield model
        return
    if choice.model is None:
        raise PlannerError(choice.problem)
    yield choice.model
