"""Ghosts as files, for the time that they are needed: in a folder of their own, deleted whatever happens."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from planner.errors import ModelError
from planner.keeper import REMOVE_FOLDER, Keeper
from planner.model.catalogue import CatalogueEntry
from planner.model.ghost.entry import entry_header
from planner.model.ghost.header import GhostHeader
from planner.model.ghost.hole import is_in_memory, write_with_hole
from planner.model.ghost.vocabulary import is_of_vocabulary, made_up_vocabulary, no_vocabulary, serves, size_of
from planner.model.marks import ghost_name
from planner.model.model import Model
from planner.model.shards import model_stem, shard_files


@contextmanager
def temporary_ghost(source: Model | CatalogueEntry, directory: Path | None = None) -> Iterator[Model]:
    """A ghost to run for real, of a header at hand (whole or cut off) or of a catalogue entry.

    It has the words of its header, or made-up ones where llama-server could not serve with those. The file is
    deleted afterwards, also when the block fails. It lies in a fresh folder in `directory`, by default in the
    person's cache: never beside the person's models.

    Raises ModelError where it cannot be written, where it would fill the disk, and where the directory is in
    RAM: there the pages that are read would be taken from the machine's memory for good.
    """
    with _own_folder(directory) as folder:
        if is_in_memory(folder):
            raise ModelError(
                f"{folder.parent} lies in memory, and so would the pages of a ghost that is run there.",
                "Use a directory on a disk (XDG_CACHE_HOME names one).",
            )
        ghost = Model.open(write_ghost(source, folder))
        yield replace(ghost, stands_for=_file_behind(source))


@contextmanager
def dry_file(model: Model, directory: Path | None = None) -> Iterator[Path]:
    """A file of this model that llama.cpp opens in milliseconds, for runs that allocate nothing: its ghost, without
    words. What it reserves does not depend on them, and a cut-off file is asked about as the whole.

    Where no ghost can be written a whole file stands for itself; raises ModelError for one that is cut off.
    """
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(_own_folder(directory))
            path = _write(_dry_headers(model), model_stem(model.path), folder)
        except ModelError:
            if not _is_whole(model):
                raise
            path = model.path
        yield path


def write_ghost(source: Model | CatalogueEntry, directory: Path) -> Path:
    """Write a ghost into an existing directory as `<name>.ghost.gguf` and return its path; a split model has one
    ghost for each of its files, of which the first is returned.

    Raises ModelError, and leaves nothing behind, where it cannot be written or would fill the disk, and for an
    entry whose architecture is unknown.
    """
    if isinstance(source, CatalogueEntry):
        return _write([entry_header(source)], source.name, directory)
    return _write(_served_headers(source), model_stem(source.path), directory)


def _write(headers: Sequence[GhostHeader], stem: str, directory: Path) -> Path:
    paths = [directory / ghost_name(stem, number, len(headers)) for number in range(1, len(headers) + 1)]
    try:
        for path, header in zip(paths, headers, strict=True):
            write_with_hole(path, header.encode(), header.data_bytes)
    except BaseException as error:
        for path in paths:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ModelError(
                f"Cannot write the ghost {paths[0]}: {error.strerror}.", "Use a directory with a few free megabytes."
            ) from error
        raise
    return paths[0]


# The headers of a model's files --------------------------------------------------------------------------------


def _served_headers(model: Model) -> list[GhostHeader]:
    if serves(model):
        return _headers(model, own_words=True)
    first, *further = _headers(model, own_words=False)
    return [first.with_pairs(made_up_vocabulary(model.architecture, size_of(model))), *further]


def _dry_headers(model: Model) -> list[GhostHeader]:
    first, *further = _headers(model, own_words=False)
    return [first.with_pairs(no_vocabulary(model.architecture, size_of(model))), *further]


def _headers(model: Model, *, own_words: bool) -> list[GhostHeader]:
    """The headers of all files, marked as ghosts; with or without what says how text becomes tokens."""
    try:
        return [
            GhostHeader.of_file(file, header, keep=lambda key: own_words or not is_of_vocabulary(key)).marked(
                model.name
            )
            for file, header in zip(_files(model), (model.header, *model.further_headers), strict=True)
        ]
    except OSError as error:
        raise ModelError(f"{model.path} cannot be read: {error.strerror}.") from None


def _files(model: Model) -> tuple[Path, ...]:
    return shard_files(model.path, 1 + len(model.further_headers)) if model.further_headers else (model.path,)


def _is_whole(model: Model) -> bool:
    headers = (model.header, *model.further_headers)
    try:
        return all(
            file.stat().st_size >= header.file_bytes for file, header in zip(_files(model), headers, strict=True)
        )
    except OSError:
        return False


def _file_behind(source: Model | CatalogueEntry) -> Path | None:
    """The file that a command may name in place of the ghost."""
    if isinstance(source, CatalogueEntry) or source.is_ghost or not _is_whole(source):
        return None
    return source.path.absolute()


# The folder ----------------------------------------------------------------------------------------------------


_FOLDER = "ghost"
"""How the names of these folders begin; the process that made them follows, which tells whether they are in use."""


@contextmanager
def _own_folder(parent: Path | None) -> Iterator[Path]:
    """A fresh folder, deleted afterwards, also when we are killed; by default in the person's cache."""
    parent = _default_directory() if parent is None else parent
    folder = parent / f"{_FOLDER}.{_place()}.{os.getpid()}.{secrets.token_hex(4)}"
    # On Windows a server that is still exiting keeps the file open; the block's result matters more.
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(remove)  # for an interrupt that comes while the folder is being removed
    keeper = Keeper(REMOVE_FOLDER, str(folder))
    try:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _sweep(parent)
            folder.mkdir()
        except OSError as error:
            raise ModelError(
                f"Cannot make a folder for the ghost in {parent}: {error.strerror}.", "Check its permissions."
            ) from error
        yield folder
    finally:
        remove()
        keeper.dismiss()
        atexit.unregister(remove)


def _sweep(parent: Path) -> None:
    """Delete the ghosts of programs that were killed together with whoever watched over them, as a container is."""
    for folder in parent.glob(f"{_FOLDER}.{_place()}.*.*"):
        _, _, pid, *_ = folder.name.split(".")
        if pid.isdecimal() and int(pid) != os.getpid() and not _runs(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


@cache
def _place() -> str:
    """Whose process ids these are: containers and machines may share a folder, and cannot see each other's."""
    import platform

    namespace = ""
    with contextlib.suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return f"{zlib.crc32(f'{platform.node()} {namespace}'.encode()):08x}"


def _runs(pid: int) -> bool:
    import psutil

    return psutil.pid_exists(pid)


def _default_directory() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("planner", appauthor=False)) / "ghosts"
