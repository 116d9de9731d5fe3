"""The truth, from llama.cpp itself: what it reserves for a launch, to hold predictions against.

`Oracle` asks a child process that has `llama_cpp` loaded, as `planner`'s dry runs do; an abort in llama.cpp costs
one answer and not the run. Nothing here uses what `planner` predicts of a launch: settings go in as
llama-server hands them to the library, and come back as llama.cpp's own log.

- `Oracle().contexts(path, launches)`: dry (`no_alloc`), no accelerator; about 20 ms a launch once a model is
  open. Caches, state, output and compute buffers; not the weights, which llama.cpp does not log then.
- `Oracle(devices=2).loads(path, launches)`: real loads, with RPC servers of this processor standing in for
  accelerators. Every buffer on every device. For tiny models: ghosts of a few MiB, and real ones.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from benchmarks import server_child
from planner.engine.library_process import LibraryProcess
from planner.engine.log import EngineLog, read_log
from planner.errors import EngineError
from planner.hardware import HOST_POOL, Device, Hardware, Pool
from planner.launch import Launch

AVAILABLE = importlib.util.find_spec("llama_cpp") is not None
"""Whether llama-cpp-python is here; without it there is no oracle."""

SERVER_AVAILABLE = AVAILABLE and server_child.engine_folder() is not None
"""Whether the embedded llama-server's own build can be asked in the library's place."""

_ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[1]), "GGML_NO_BACKTRACE": "1"}
_START_SECONDS = 20.0
_MIB = r"(\d+\.\d+) MiB"
_CACHE = re.compile(
    rf"llama_kv_cache: size =\s*{_MIB} \(\s*(\d+) cells,\s*(\d+) layers.*K \(\w+\):\s*{_MIB}, V \(\w+\):\s*{_MIB}"
)
_STATE = re.compile(rf"llama_memory_recurrent: size =\s*{_MIB}|state buffer size =\s*{_MIB}")
_OUTPUT = re.compile(rf"output buffer size =\s*{_MIB}")
_COMPUTE = re.compile(rf"compute buffer size =\s*{_MIB}")


@dataclass(frozen=True, slots=True)
class Cache:
    """One KV cache as logged: cells of a stream, layers, and the MiB of all keys and all values."""

    cells: int
    layers: int
    k_mib: float
    v_mib: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What llama.cpp said about one launch."""

    lines: tuple[str, ...]
    refusal: str
    """Its errors where it opened no model or made no context; empty where it did."""

    @property
    def log(self) -> EngineLog:
        """The buffers per device, as `planner` reads them; all are logged as 0.00 MiB in a dry run."""
        return read_log(self.lines)

    @property
    def caches(self) -> tuple[Cache, ...]:
        """The KV caches, in the order of creation. Right in a dry run, too."""
        found = (_CACHE.search(line) for line in self.lines)
        return tuple(Cache(int(m[2]), int(m[3]), float(m[4]), float(m[5])) for m in found if m)

    @property
    def state_mib(self) -> float:
        """States that do not grow with the context: recurrent ones and DeepSeek-V4's."""
        return self._sum(_STATE)

    @property
    def output_mib(self) -> float:
        """The buffer of logits."""
        return self._sum(_OUTPUT)

    @property
    def compute_mib(self) -> float:
        """The compute buffers of all devices."""
        return self._sum(_COMPUTE)

    def _sum(self, pattern: re.Pattern[str]) -> float:
        found = (pattern.search(line) for line in self.lines)
        return sum(float(next(filter(None, match.groups()))) for match in found if match)


class Oracle:
    """Asks llama.cpp. Processes start with the first question and end with the `with` block.

    `server` asks the build of the embedded llama-server, which has no RPC back end, instead of the library's.
    """

    def __init__(self, devices: int = 0, *, server: bool = False) -> None:
        self._servers: list[subprocess.Popen[str]] = []
        self._endpoints: list[str] = []
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the processes)
        try:
            for _ in range(devices):
                self._endpoints.append(self._start_server())
        except BaseException:
            self._end_servers()
            raise
        asked = ("benchmarks.server_child",) if server else ("benchmarks.oracle_child", "answer", *self._endpoints)
        command = (sys.executable, "-m", *asked)
        self._process = LibraryProcess(command, environment=_ENVIRONMENT)

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End every process. They end by themselves, too, when this one is gone."""
        self._process.close()
        self._end_servers()

    def _end_servers(self) -> None:
        for server in self._servers:
            _end(server)
        self._servers = []
        self._errors.close()

    @property
    def device_names(self) -> tuple[str, ...]:
        """The devices by llama.cpp's name of their buffers: `RPC0[127.0.0.1:50052]`, ..."""
        return tuple(f"RPC0[{endpoint}]" for endpoint in self._endpoints)

    def hardware(self, cpu_features: frozenset[str], usable_bytes: int = 64 << 30) -> Hardware:
        """The machine that the oracle answers for. Its devices report the same free memory: the host's."""
        names = (*self.device_names, HOST_POOL)
        return Hardware(
            pools=tuple(
                Pool(name=name, total_bytes=usable_bytes, usable_bytes=usable_bytes, source="oracle") for name in names
            ),
            devices=(
                *(Device(name=name, pool=name) for name in self.device_names),
                Device(name="CPU", pool=HOST_POOL),
            ),
            cpu_features=cpu_features,
        )

    def contexts(self, path: Path, launches: Iterable[Launch]) -> list[Answer]:
        """What each launch would reserve, without reserving it (`no_alloc`), in the order of `launches`."""
        return list(self._ask(path, launches, dry=True))

    def loads(self, path: Path, launches: Iterable[Launch]) -> list[Answer]:
        """What each launch reserved when it was made for real. Launches that differ in nothing about the weights
        load them once.
        """
        return list(self._ask(path, launches, dry=False))

    def _ask(self, path: Path, launches: Iterable[Launch], *, dry: bool) -> Iterator[Answer]:
        for launch in launches:
            try:
                answer = self._process.ask(path, launch, devices=self.device_names, dry=dry)
            except EngineError as error:
                yield Answer((), str(error))
            else:
                yield Answer(answer.lines, answer.refusal)

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-500:].strip()

    def _start_server(self) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._servers.append(
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.oracle_child", "serve", str(port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                text=True,
                env={**os.environ, **_ENVIRONMENT},
            )
        )
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._servers[-1].poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return f"127.0.0.1:{port}"
            time.sleep(0.02)
        raise RuntimeError(f"the RPC server did not start: {self._last_words()}")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
