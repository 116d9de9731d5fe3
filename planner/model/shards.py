"""Split models: one model in several files, named `PREFIX-00001-of-00003.gguf`.

Source: `src/llama-model-loader.cpp` (constructor), `src/llama.cpp: llama_split_path`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from planner.errors import ModelError
from planner.model.gguf import GgufHeader, read_header

_NAME = re.compile(r"^(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


Stamp = tuple[int, int]
"""Size of a file, and the time of its last change in nanoseconds. Not its number, which some network file systems
make up anew."""


def stamp_of(file: Path) -> Stamp:
    """What tells this very file from another one in its place, and from itself after a change. Raises OSError."""
    status = file.stat()
    return (status.st_size, status.st_mtime_ns)


def model_file(path: Path) -> Path:
    """The file to open for what a person named: a folder stands for the one model in it."""
    if not path.is_dir():
        return path
    files = sorted(file for file in path.glob("*.gguf") if "mmproj" not in file.name.lower() and file.is_file())
    firsts = [file for file in files if not (match := _NAME.match(file.name)) or int(match["number"]) == 1]
    if len(firsts) == 1:
        return firsts[0]
    if not firsts and files:
        return files[0]
    what = "no GGUF file" if not firsts else f"{len(firsts)} models ({', '.join(file.name for file in firsts[:3])})"
    raise ModelError(f"The folder {path} holds {what}.", "Name the .gguf file to open.")


def read_files(path: Path) -> dict[Path, GgufHeader]:
    """The files of a whole model with their headers: one, or all shards, whichever of them was named.

    The first file holds the metadata. Raises ModelError naming a shard that is missing.
    """
    header = read_header(path)
    count = header.metadata.get("split.count", 0)
    if not isinstance(count, int) or count <= 1:
        return {path: header}
    files = {
        file: _numbered(header if file == path else read_header(file), index)
        for index, file in enumerate(shard_files(path, count))
    }
    _check_together(path, files)
    return files


def _check_together(path: Path, files: dict[Path, GgufHeader]) -> None:
    """What llama.cpp checks: the number in each part, and the tensors of all parts together."""
    for index, (file, part) in enumerate(files.items()):
        number = part.metadata.get("split.no", index)
        if number != index:
            raise ModelError(
                f"{file} is part {index + 1} by its name and part {number + 1 if isinstance(number, int) else number} "
                "by what it says.",
                "Give it back its own name.",
            )
    names = [tensor.name for part in files.values() for tensor in part.tensors]
    first, *_ = files.values()
    announced = first.metadata.get("split.tensors.count", len(names))
    if announced != len(names):
        raise ModelError(
            f"The {len(files)} parts of {path} hold {len(names)} tensors and not the {announced} that they announce.",
            "Some part belongs to another model: download them again.",
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ModelError(
            f"The tensor {twice} is in more than one of the {len(files)} parts of {path}.",
            "Some part belongs to another model: download them again.",
        )


def _numbered(header: GgufHeader, shard: int) -> GgufHeader:
    return replace(header, tensors=tuple(replace(tensor, shard=shard) for tensor in header.tensors))


def model_stem(path: Path) -> str:
    """The name of a model's file without its ending, and without the number of its part."""
    match = _NAME.match(path.name)
    return match["prefix"] if match else path.stem


def shard_files(path: Path, count: int) -> tuple[Path, ...]:
    """All files of a split model, whichever of them `path` is. Raises ModelError naming those that are missing."""
    match = _NAME.match(path.name)
    if match is None or int(match["count"]) != count:
        raise ModelError(
            f"{path} is part of a model split into {count} files, and its name does not say which part.",
            f"llama.cpp finds the others by name: call it PREFIX-00001-of-{count:05d}.gguf and so on.",
        )
    files = tuple(
        path.with_name(f"{match['prefix']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)
    )
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelError(
            f"The model is split into {count} files, and {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not beside {path.name}.",
            "Finish the download.",
        )
    return files
