"""The model that `--measure` works on: the one that was named, the best one found here, or a ghost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from planner.errors import CutOffError, ModelError, PlannerError
from planner.hardware import Hardware
from planner.launch import Launch
from planner.memory import Verdict, predict
from planner.model import Model
from planner.model.catalogue import CatalogueEntry, find_entry, load_catalogue
from planner.model.discover import find_models, usual_folders
from planner.model.ghost import temporary_ghost
from planner.sweeps import DEFAULT_CONTEXT, DEFAULT_USERS


def default_context(model: Model) -> int:
    """Tokens for each person where nobody says how many."""
    return min(DEFAULT_CONTEXT, model.hyperparameters.n_ctx_train) if model.rules else DEFAULT_CONTEXT


@contextlib.contextmanager
def chosen_model(named: str | None, hardware: Hardware, *, ghost: bool) -> Iterator[tuple[Model, str]]:
    """The model to measure, for as long as it is there, and why it is this one."""
    best = None if ghost or named is not None else _best_model(hardware)
    if best is not None:
        yield best, "no model was named, and this is the largest of those found here that fits"
    elif named is not None and not ghost:
        yield _open_whole(named), "it was named"
    elif named is not None:
        source = _header_of(named)
        what = str(source.path) if isinstance(source, Model) else source.title
        with temporary_ghost(source) as opened:
            yield opened, f"it was named. {_about_ghost(opened, what)}"
    else:
        why = "no model was named" if ghost else "no model was named or found here"
        with temporary_ghost(load_catalogue()[0]) as opened:
            yield opened, f"{why}. {_about_ghost(opened, 'a small model')}"


def _about_ghost(ghost: Model, what: str) -> str:
    said = (
        f"This is a ghost: the true shapes of {what} around empty weights. Memory and speed are real, its answers "
        "are not"
    )
    if ghost.rules is None or not ghost.hyperparameters.n_expert:
        return said
    return f"{said}. It asks the same few experts for every token, so the model itself may be slower"


def _open_whole(named: str) -> Model:
    try:
        return Model.open(named)
    except CutOffError as error:
        raise CutOffError(error.message, "Finish the download, or measure a ghost of it with --ghost.") from None


def _header_of(named: str) -> Model | CatalogueEntry:
    """What a ghost is to be made of: a file or folder, else an entry of the catalogue."""
    if Path(named).expanduser().exists():
        return Model.open(named, header_only=True)
    try:
        return find_entry(named)
    except ModelError as error:
        raise ModelError(f"There is no file {named}, and the catalogue has no such model.", error.hint) from None


def _best_model(hardware: Hardware) -> Model | None:
    best: Model | None = None
    for path in find_models(usual_folders()):
        try:
            model = Model.open(path)
            fits = _fits(model, hardware)
        except PlannerError:
            continue  # a damaged file among many must not stop the others
        if fits and (best is None or model.tensor_bytes > best.tensor_bytes):
            best = model
    return best


def _fits(model: Model, hardware: Hardware) -> bool:
    launch = Launch.for_users(DEFAULT_USERS, default_context(model))
    return not model.is_ghost and predict(model, launch, hardware).verdict in (Verdict.FITS, Verdict.TIGHT)
