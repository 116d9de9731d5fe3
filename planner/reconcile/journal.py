"""An append-only file of JSON lines that several programs may write at once and that survives a kill at any byte.

A line is whole or it is passed over. Nothing that was there is ever changed: what cannot be written in full is taken
back, and a line that a killed program left unfinished stays where it is, closed by a newline.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.locks import lock


@dataclass(frozen=True, slots=True)
class Journal:
    """One such file; it need not be there yet."""

    path: Path

    def append(self, lines: Sequence[bytes]) -> None:
        """Add lines (without their newline), all or none. On disk when this returns; raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self.path.exists()
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
        try:
            # Without a lock one write at the end of a file still keeps lines apart.
            alone = lock(descriptor)
            size = os.fstat(descriptor).st_size
            start = b"" if _ends_a_line(descriptor, size) else b"\n"
            try:
                _write(descriptor, start + b"".join(line + b"\n" for line in lines))
                os.fsync(descriptor)
            except OSError:
                if alone:  # else the end of the file may be another program's by now
                    os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)
        if is_new:
            _sync_folder(self.path.parent)

    def lines(self) -> Iterator[bytes]:
        """Every line, oldest first; nothing where there is no file. Raises OSError where it cannot be read."""
        try:
            with self.path.open("rb") as file:
                yield from file
        except FileNotFoundError:
            return


def _ends_a_line(descriptor: int, size: int) -> bool:
    if size == 0:
        return True
    os.lseek(descriptor, size - 1, os.SEEK_SET)
    return os.read(descriptor, 1) == b"\n"


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _sync_folder(folder: Path) -> None:
    """The name of a new file must survive a power failure, too."""
    with contextlib.suppress(OSError):  # Windows opens no folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
