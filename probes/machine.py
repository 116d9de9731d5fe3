"""One machine as the probes see it: its files, commands and clients, with everything that was read kept.

What a probe reads goes through here and nowhere else, so that the answers of one machine, kept as a `Report`,
let the same probes see the same machine anywhere.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from probes._files import describe, excerpt, run_command, to_integer
from probes.report import Json, Report

_Kept = TypeVar("_Kept")

Run = Callable[[Sequence[str]], str]
"""Runs a command and returns what it printed on standard output; raises OSError when it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """What probes ask beside files. None stands for this machine's own, which is looked for at the moment of use."""

    run: Run = run_command
    nvml: Any = None
    """The module `pynvml`, or something with its functions."""
    psutil: Any = None
    """The module `psutil`, or something with its functions."""
    metal: Callable[[], Json] | None = None
    """What Metal says of its device, as `probes.apple.read_metal` does."""
    windows_memory: Callable[[], Json] | None = None
    """What GlobalMemoryStatusEx says, as in `probes.windows`."""
    counters: Callable[[str], Mapping[str, int]] | None = None
    """The instances of a counter of Windows and their values, as `probes.process_devices.read_counters` does."""
    windows_adapters: Callable[[], Json] | None = None
    """The display adapters of Windows' registry, as in `probes.windows`."""


class Machine:
    """The machine below a root, or the one that a report was made of. Remembers every answer."""

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        system: str | None = None,
        architecture: str | None = None,
        clients: Clients = Clients(),
    ) -> None:
        self.root = root
        self.clients = clients
        self.system = platform.system() if system is None else system
        """As Python names it: Linux, Darwin, Windows."""
        self.architecture = platform.machine() if architecture is None else architecture
        self._replayed: Report | None = None
        self._files: dict[str, str] = {}
        self._folders: dict[str, tuple[str, ...]] = {}
        self._links: dict[str, str] = {}
        self._answers: dict[str, Json] = {}
        self._failures: dict[str, str] = {}

    @classmethod
    def replay(cls, report: Report) -> Machine:
        """The machine of a report: nothing outside of it is looked at."""
        machine = cls(system=report.system, architecture=report.architecture)
        machine._replayed = report
        return machine

    @property
    def report(self) -> Report:
        """Everything that was read so far."""
        if self._replayed is not None:
            return self._replayed
        return Report(
            system=self.system,
            architecture=self.architecture,
            files=dict(self._files),
            folders=dict(self._folders),
            links=dict(self._links),
            answers=dict(self._answers),
            failures=dict(self._failures),
        )

    def path(self, path: str) -> Path:
        """Where an absolute path of the machine is."""
        return self.root / path.lstrip("/")

    def read(self, path: str, keep: re.Pattern[str] | None = None) -> str:
        """The text of a file; with `keep`, its matches alone, one a line: the rest is neither seen nor kept.

        A machine reads each file once, so that everyone has to keep the same of it. Raises OSError; ValueError
        for a NUL in the path.
        """
        if self._replayed is not None:
            return _recalled(self._replayed.files, self._replayed.failures, path)
        if path in self._files:
            return self._files[path]
        try:
            text = self.path(path).read_bytes().decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            raise
        except (OSError, ValueError) as error:
            self._failures[path] = describe(error)
            raise
        if keep is not None:
            text = "".join(f"{match}\n" for match in (found.group() for found in keep.finditer(text)))
        self._files[path] = text
        return text

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a folder, sorted. Raises OSError."""
        if self._replayed is not None:
            return _recalled(self._replayed.folders, self._replayed.failures, path)
        try:
            names = tuple(sorted(entry.name for entry in self.path(path).iterdir()))
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            self._failures[path] = describe(error)
            raise
        self._folders[path] = names
        return names

    def target(self, path: str) -> str:
        """The last part of where a symbolic link leads. Raises OSError."""
        if self._replayed is not None:
            return _recalled(self._replayed.links, {}, path)
        # str: a link may lead to anything, and a Windows path has other separators.
        target = str(self.path(path).readlink()).rstrip("/").rpartition("/")[2]
        self._links[path] = target
        return target

    def exists(self, path: str) -> bool:
        """Whether something is there."""
        if self._replayed is not None:
            return path in self._replayed.links
        try:
            found = self.path(path).exists()
        except OSError:
            return False
        if found:
            self._links.setdefault(path, "")
        return found

    def was_asked(self, name: str) -> bool:
        """Whether a client was asked this, on the machine of a report."""
        kept = self._replayed
        return kept is not None and (name in kept.answers or name in kept.failures)

    def answer(self, name: str, ask: Callable[[], Json]) -> Json:
        """What a client answers, under a name that it is kept by. Raises LookupError with the reason when it fails."""
        if self._replayed is not None:
            if name in self._replayed.answers:
                return self._replayed.answers[name]
            raise LookupError(self._replayed.failures.get(name, "was not asked"))
        if name in self._answers:
            return self._answers[name]
        try:
            answer = ask()
        except Exception as error:  # whatever a driver's client does
            self._failures[name] = describe(error) if isinstance(error, OSError) else str(error) or repr(error)
            raise LookupError(self._failures[name]) from error
        self._answers[name] = answer
        return answer


Where = Path | Machine
"""Where a probe looks: a machine, or the root of its file tree."""


def machine_at(where: Where) -> Machine:
    """The machine that a probe's first argument stands for."""
    return where if isinstance(where, Machine) else Machine(where)


class Files:
    """The text files of a machine for one probe. What cannot be read is collected as a warning, never raised."""

    def __init__(self, where: Where) -> None:
        self.machine = machine_at(where)
        self.warnings: list[str] = []

    def text(self, path: str, keep: re.Pattern[str] | None = None) -> str | None:
        """The text of an absolute path of the machine, as `Machine.read` gives it.

        None when it does not exist, which is an answer; None and a warning when it exists and cannot be read.
        """
        try:
            return self.machine.read(path, keep)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            self.warnings.append(f"{path}: {describe(error)}")
            return None

    def integer(self, path: str) -> int | None:
        """The integer that a kernel file holds; None as for `text`, and with a warning when it is none."""
        text = self.text(path)
        if text is None:
            return None
        value = to_integer(text.strip())
        if value is None:
            self.warnings.append(f"{path}: not an integer: {excerpt(text)}")
        return value

    def size(self, path: str) -> int | None:
        """The same for a number of bytes, which is never negative."""
        value = self.integer(path)
        if value is not None and value < 0:
            self.warnings.append(f"{path}: not a size: {value}")
            return None
        return value

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a folder; empty when there is none, and with a warning when it cannot be read."""
        try:
            return self.machine.names(path)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except (OSError, ValueError) as error:
            self.warnings.append(f"{path}: {describe(error)}")
            return ()

    def target(self, path: str) -> str | None:
        """The last part of where a symbolic link leads; None when it is none."""
        try:
            return self.machine.target(path)
        except (OSError, ValueError):
            return None

    def answer(self, name: str, ask: Callable[[], Json]) -> Json:
        """What a client answers; None and a warning when it fails."""
        try:
            return self.machine.answer(name, ask)
        except LookupError as error:
            self.warnings.append(f"{name}: {error.args[0]}")
            return None


def _recalled(kept: Mapping[str, _Kept], failures: Mapping[str, str], path: str) -> _Kept:
    if path in kept:
        return kept[path]
    if path in failures:
        raise OSError(failures[path])
    raise FileNotFoundError(path)
