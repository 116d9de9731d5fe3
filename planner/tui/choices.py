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
    """None where not even the header can be read."""
    problem: str = ""
    """Why the file cannot be run; empty when it can."""
    entry: CatalogueEntry | None = None
    """The catalogue's entry behind a ghost; None for a file."""

    @property
    def is_ghost(self) -> bool:
        """Whether there are no weights behind it."""
        return self.entry is not None or (self.model is not None and self.model.is_ghost)


def find_choices() -> Iterator[Choice]:
    """Every model file of this machine, else ghosts; files that cannot be run come last."""
    broken = []
    usable = False
    for path in find_models(usual_folders()):
        choice = file_choice(path)
        if choice.problem:
            broken.append(choice)
        else:
            usable = True
            yield choice
    if not usable:
        yield from ghost_choices()
    yield from sorted(broken, key=lambda choice: choice.model is None)


def file_choice(path: Path) -> Choice:
    """The row of one file; one that is cut off behind its header can still be planned."""
    try:
        return Choice(name=path.name, model=Model.open(path))
    except PlannerError as error:
        return Choice(name=path.name, model=_header_of(path), problem=str(error))
    except OSError as error:
        return Choice(name=path.name, model=None, problem=f"{path} cannot be read: {error.strerror}.")


def _header_of(path: Path) -> Model | None:
    try:
        return Model.open(path, header_only=True)
    except (PlannerError, OSError):
        return None


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
def to_run(choice: Choice, *, ghost: bool = False) -> Iterator[Model]:
    """The model with a file that llama-server can run; a ghost's is written now and deleted afterwards.

    `ghost` takes a ghost of a file, too. Raises PlannerError for a file that cannot be run.
    """
    source = choice.entry or (choice.model if ghost else None)
    if source is not None:
        with temporary_ghost(source) as model:
            yield model
    elif choice.model is None:
        raise PlannerError(choice.problem)
    elif choice.problem:
        raise PlannerError(choice.problem, "Until then, g measures a ghost of it.")
    else:
        yield choice.model


@contextmanager
def to_ask(choice: Choice) -> Iterator[Model]:
    """The model with a header that a dry run can copy. Raises PlannerError where there is none."""
    if choice.entry is not None:
        with temporary_ghost(choice.entry) as model:
            yield model
    elif choice.model is None:
        raise PlannerError(choice.problem)
    else:
        yield choice.model
