"""What is kept of an engine between runs: what it says of itself, and that it works here.

- Its version and its flags are true as long as the program is the same file. They are kept, and so is that it
  decoded a token, under path, size, place and times of the program and of llama.cpp's libraries beside it, where most
  builds have nearly everything.
- A script is asked anew each time, since what it starts may change without it.
- Devices are never kept. Which there are depends on drivers, on variables of the environment and on what is
  plugged in; how much of each is free is a matter of the moment. Whoever counts them asks.

It only saves time: a file that is damaged, or that cannot be written, is as good as none. Each fact is one line,
appended in one write, so that several programs at once do not harm each other's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_VERSION = 2
_MOST_BYTES = 1 << 20
"""A file that has grown larger is begun anew."""
_LIBRARY = re.compile(r"(lib)?(ggml|llama|mtmd)[\w.-]*\.(so|dylib|dll)\b")


def default_path() -> Path:
    """The file in the person's cache."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("planner", appauthor=False)) / "engines.jsonl"


@dataclass(frozen=True, slots=True)
class Known:
    """What is kept of one program, as it was when it was looked up: what is added later is kept of that one."""

    facts: dict[str, Any]
    _stamp: dict[str, Any]
    _kept: Path

    def add(self, **facts: Any) -> None:
        """Keep more of it."""
        line = json.dumps({**self._stamp, "facts": facts}, separators=(",", ":"))
        with contextlib.suppress(OSError):
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            is_full = self._kept.exists() and self._kept.stat().st_size > _MOST_BYTES
            with self._kept.open("wb" if is_full else "ab", buffering=0) as file:
                file.write(f"\n{line}\n".encode())  # after whatever a killed program left unfinished


def look_up(program: Path, kept: Path | None = None) -> Known:
    """What is kept of a program, or of the folder of a library.

    `kept` is the file, the one in the person's cache by default.
    """
    kept = kept or default_path()
    stamp = _stamp(program)
    facts: dict[str, Any] = {}
    with contextlib.suppress(OSError):
        for line in kept.read_bytes().splitlines() if kept.is_file() else ():
            with contextlib.suppress(ValueError, RecursionError, AttributeError, KeyError, TypeError):
                entry = json.loads(line)
                said = entry.pop("facts")
                if entry == stamp:
                    facts.update(said)
    return Known(facts, stamp, kept)


def is_script(program: Path) -> bool:
    """Whether another program reads it, so that it may start anything."""
    if program.suffix.lower() in (".bat", ".cmd"):
        return True
    try:
        with program.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _stamp(program: Path) -> dict[str, Any]:
    """What tells this very program from any other, and from itself after a change. Raises OSError without it."""
    status = program.stat()
    return {
        "version": _VERSION,
        "machine": platform.node(),
        "path": str(program),
        **marks(status),
        "libraries": _libraries(program if program.is_dir() else program.resolve().parent),
    }


def marks(status: os.stat_result) -> dict[str, int]:
    """What changes with a file's bytes. Some systems give every file the same time: then its place and the time at
    which it was put there tell.
    """
    return {
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
    }


def _libraries(folder: Path) -> str:
    """llama.cpp's libraries where a build looks for them: beside the program, or in `lib` beside its folder."""
    found = []
    places = (folder, folder.parent / "lib", folder.parent / "lib64", *folder.parent.glob("lib/*-linux-gnu*"))
    for place in places:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if _LIBRARY.match(entry.name):
                    status = entry.stat()
                    found.append((entry.name, *marks(status).values()))
    return hashlib.sha256(repr(sorted(found)).encode()).hexdigest()[:16]
