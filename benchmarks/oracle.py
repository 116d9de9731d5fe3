"""The truth, from llama.cpp itself: what it reserves for a launch, to hold predictions against.

`Oracle` asks a child process that has `llama_cpp` loaded (`benchmarks/oracle_child.py`); an abort in llama.cpp costs
one answer and not the run. Nothing here uses what `planner` derives from a launch: settings go in as
llama-server hands them to the library, and come back as llama.cpp's own log.

- `Oracle().contexts(path, launches)`: dry (`no_alloc`), no accelerator; about 20 ms a launch once a model is
  open. Caches, state, output and compute buffers; not the weights, which llama.cpp does not log then.
- `Oracle(devices=2).loads(path, launches)`: real loads, with RPC servers of this processor standing in for
  accelerators. Every buffer on every device. For tiny models: ghosts of a few MiB, and real ones.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from planner.engine.log import EngineLog, read_log
from planner.hardware import HOST_POOL, Device, Hardware, Pool
from planner.launch import Launch

AVAILABLE = importlib.util.find_spec("llama_cpp") is not None
"""Whether llama-cpp-python is here; without it there is no oracle."""

_CHILD = Path(__file__).with_name("oracle_child.py")
_START_SECONDS = 20.0
_MIB = r"(\d+\.\d+) MiB"
_CACHE = re.compile(
    rf"llama_kv_cache: size =\s*{_MIB} \(\s*(\d+) cells,\s*(\d+) layers.*K \(\w+\):\s*{_MIB}, V \(\w+\):\s*{_MIB}"
)
_STATE = re.compile(rf"llama_memory_recurrent: size =\s*{_MIB}|state buffer size =\s*{_MIB}")
_OUTPUT = re.compile(rf"output buffer size =\s*{_MIB}")
_COMPUTE = re.compile(rf"compute buffer size =\s*{_MIB}")

_GGML_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30,
}  # fmt: skip
_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_SPLIT_MODES = {"none": 0, "layer": 1}
_LOAD_MODES = {"auto": -1, "none": 0, "mmap": 1, "mlock": 2, "mmap+mlock": 3, "dio": 4}
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE = r"\.ffn_(up|down|gate)\."


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
    """Asks llama.cpp. Processes start with the first question and end with the `with` block."""

    def __init__(self, devices: int = 0) -> None:
        self._servers: list[subprocess.Popen[str]] = []
        self._endpoints: list[str] = []
        self._child: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the processes)
        try:
            for _ in range(devices):
                self._endpoints.append(self._start_server())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End every process. They end by themselves, too, when this one is gone."""
        for process in (self._child, *self._servers):
            if process is not None:
                _end(process)
        self._child, self._servers = None, []
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
            request = {
                "path": str(path),
                "written": path.stat().st_mtime_ns,
                "model": _model_settings(launch, self.device_names, dry=dry),
                "context": _context_settings(launch),
            }
            yield self._answer(json.dumps(request))

    def _answer(self, request: str) -> Answer:
        if self._child is None:
            self._errors.seek(0)
            self._errors.truncate()
            self._child = self._start("answer", *self._endpoints, stdout=subprocess.PIPE)
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None and stdout is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(request + "\n")
            stdin.flush()
        line = stdout.readline()
        if not line:
            status = self._child.wait()
            self._child = None
            return Answer((), f"llama.cpp ended with {status}: {self._last_words()}")
        answer = json.loads(line)
        return Answer(tuple(answer["log"].splitlines()), answer["refusal"].strip())

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-500:].strip()

    def _start_server(self) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._servers.append(self._start("serve", str(port), stdout=subprocess.DEVNULL))
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._servers[-1].poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return f"127.0.0.1:{port}"
            time.sleep(0.02)
        raise RuntimeError(f"the RPC server did not start: {self._last_words()}")

    def _start(self, *arguments: str, stdout: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(_CHILD), *arguments],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=self._errors,
            text=True,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        )


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _model_settings(launch: Launch, devices: Sequence[str], *, dry: bool) -> dict[str, Any]:
    """`llama_model_params` as llama-server fills them (`common/common.cpp: common_model_params_to_llama`)."""
    if launch.device is not None:
        devices = [name for name in launch.device.split(",") if name != "none"]
    return {
        "devices": list(devices),
        "overrides": _overrides(launch),
        "tensor_split": list(launch.tensor_split),
        "plain": {
            "n_gpu_layers": -1 if launch.n_gpu_layers is None else launch.n_gpu_layers,
            "split_mode": _SPLIT_MODES[launch.split_mode],
            "main_gpu": launch.main_gpu,
            "load_mode": 0 if dry else _LOAD_MODES[launch.load_mode],
            "use_extra_bufts": launch.repack,
            "no_host": launch.no_host,
            "no_alloc": dry,
        },
    }


def _overrides(launch: Launch) -> list[tuple[str, str]]:
    """In the order of the arguments that `planner` writes (`common/arg.cpp` appends one after the other)."""
    overrides = list(launch.override_tensor)
    if launch.cpu_moe:
        overrides.append((_EXPERTS, "CPU"))
    overrides += [(rf"blk\.{layer}{_EXPERTS}", "CPU") for layer in range(launch.n_cpu_moe)]
    overrides += [(rf"blk\.{layer}{_DENSE}", "CPU") for layer in range(launch.n_cpu_ffn)]
    return overrides


def _context_settings(launch: Launch) -> dict[str, Any]:
    """`llama_context_params` as llama-server fills them (`common_context_params_to_llama`, `tools/server`)."""
    batch = launch.ubatch_size if launch.embeddings else launch.batch_size
    slots = launch.slots
    return {
        # `--fit`, which is on by default, gives every one of so many slots the trained context.
        "trained_times": 1 if launch.parallel is None else slots,
        "plain": {
            "n_ctx": launch.ctx_size,
            "n_batch": batch,
            "n_ubatch": launch.ubatch_size,
            "n_seq_max": slots,
            "n_outputs_max": batch if launch.embeddings else min(batch, slots),
            "n_outputs_max_per_seq": 0 if launch.embeddings else 1,
            "type_k": _GGML_TYPES[launch.cache_type_k],
            "type_v": _GGML_TYPES[launch.cache_type_v],
            "flash_attn_type": _FLASH_ATTENTION[launch.flash_attn],
            "kv_unified": launch.unified,
            "swa_full": launch.swa_full,
            "offload_kqv": launch.kv_offload,
            "embeddings": launch.embeddings,
        },
    }
