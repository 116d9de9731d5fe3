"""Reads llama-server's log: the buffers it reserved, and what grew afterwards.

Needs `--verbosity 4`: below it, current builds print no buffer (older ones print them always). Formats:
`src/llama-model.cpp` (load_tensors), `src/llama-kv-cache.cpp`, `src/llama-context.cpp`,
`tools/server/server-context.cpp`. Sizes are printed in MiB with two decimals (checkpoints: three).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from planner.units import MIB

BufferKind = Literal["model", "kv", "compute", "output", "state"]

ROUNDING_BYTES = MIB // 200
"""Half of the last printed digit: a figure of the log may be this far from the true one."""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_MIB = r"=\s*(?P<mib>\d+[.,]\d+) MiB"
_BUFFERS: tuple[tuple[BufferKind, re.Pattern[str]], ...] = (
    ("model", re.compile(r"load_tensors:\s*(?P<device>\S+) model buffer size\s*" + _MIB)),
    ("kv", re.compile(r":\s*(?P<device>\S+) KV buffer size\s*" + _MIB)),
    ("state", re.compile(r":\s*(?P<device>\S+) (?:RS|DSV4 \S+ state) buffer size\s*" + _MIB)),
    ("compute", re.compile(r":\s*(?P<device>\S+) compute buffer size\s*" + _MIB)),
    ("output", re.compile(r":\s*(?P<device>\S+)\s+output buffer size\s*" + _MIB)),
)
_CACHE = re.compile(r"llama_kv_cache: size =\s*[\d.,]+ MiB \(\s*(?P<cells>\d+) cells,\s*(?P<layers>\d+) layers")
_CONTEXT = re.compile(r"llama_context: (?P<key>n_ctx_seq|n_ctx|n_batch|n_ubatch|n_seq_max)\s*= (?P<value>\d+)")
_CHECKPOINT = re.compile(r"created context checkpoint .*size = (?P<mib>\d+[.,]\d+) MiB")
_PROMPT_CACHE = re.compile(r"cache state: (?P<prompts>\d+) prompts, (?P<mib>\d+[.,]\d+) MiB")
_NEW_MODEL = re.compile(r"load_tensors: loading model tensors")
_LOADED = re.compile(r": model loaded$")
_FEATURE = re.compile(r"\b(?P<name>[A-Z][A-Z0-9_]+) = 1\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One buffer that llama.cpp says it allocated."""

    kind: BufferKind
    device: str
    """llama.cpp's buffer type: `CPU`, `CPU_Mapped`, `CPU_REPACK`, `CUDA0`, `CUDA_Host`, ..."""
    size_bytes: int
    """As printed, so true to `ROUNDING_BYTES`."""

    @property
    def placed_on(self) -> str:
        """The device whose memory it takes: pinned and mapped host buffers are the host's."""
        if self.device.startswith("CPU") or self.device.endswith("_Host"):
            return "CPU"
        return self.device.removesuffix("_Mapped")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLog:
    """What a log has said so far. Nothing in it stands for nothing said: a missing line is not a zero."""

    buffers: tuple[Buffer, ...] = ()
    cells: tuple[int, ...] = ()
    """Cells per stream of each KV cache, in the order of creation."""
    context: dict[str, int] = field(default_factory=dict)
    """`n_ctx`, `n_ctx_seq`, ... as llama.cpp resolved them."""
    checkpoints_bytes: int = 0
    """All checkpoints that were created."""
    prompt_cache_bytes: int = 0
    """The prompt cache when it was last mentioned."""
    loaded: bool = False
    """Whether everything that loading says has been read; the log comes later than the server's readiness."""
    cpu_features: frozenset[str] = frozenset()
    """Instruction sets that the engine was built for and found: `AVX2`, `AVX512`, ..."""

    def of_kind(self, kind: BufferKind) -> tuple[Buffer, ...]:
        """The buffers of this kind; none may mean that the log does not say."""
        return tuple(buffer for buffer in self.buffers if buffer.kind == kind)

    def buffer_bytes(self, kind: BufferKind, buffer_type: str | None = None) -> int | None:
        """The sum of these buffers; None when the log names none."""
        sizes = [buffer.size_bytes for buffer in self.of_kind(kind) if buffer_type in (None, buffer.device)]
        return sum(sizes) if sizes else None


def plain_line(line: str) -> str:
    """What `--log-jsonl` wrote as the line that it would have been without; every other line as it is."""
    if not line.startswith('{"type":"log"'):
        return line
    try:
        entry = json.loads(line)
        millis, micros = divmod(int(entry["time"]), 1000)
        seconds, millis = divmod(millis, 1000)
        clock = f"{seconds // 60}.{seconds % 60:02}.{millis:03}.{micros:03}"
        return f"{clock} {entry['level'][0].upper()} {entry['msg']}"
    except (ValueError, KeyError, TypeError, IndexError):
        return line


def read_log(lines: Iterable[str]) -> EngineLog:
    """Everything that the lines say."""
    log = EngineLog()
    for line in lines:
        log = read_line(log, line)
    return log


def read_line(log: EngineLog, line: str) -> EngineLog:
    """The log with one more line. A second load replaces the first: the first was the dry pass of `--fit`."""
    line = _ANSI.sub("", line)
    if _NEW_MODEL.search(line):
        return replace(log, buffers=(), cells=())
    if "buffer size" in line:
        for kind, pattern in _BUFFERS:
            if match := pattern.search(line):
                buffer = Buffer(kind=kind, device=match["device"], size_bytes=_bytes(match["mib"]))
                return replace(log, buffers=(*log.buffers, buffer))
        return log
    if match := _CONTEXT.search(line):
        return replace(log, context={**log.context, match["key"]: int(match["value"])})
    if match := _CACHE.search(line):
        return replace(log, cells=(*log.cells, int(match["cells"])))
    if match := _CHECKPOINT.search(line):
        return replace(log, checkpoints_bytes=log.checkpoints_bytes + _bytes(match["mib"]))
    if match := _PROMPT_CACHE.search(line):
        return replace(log, prompt_cache_bytes=_bytes(match["mib"]))
    if _LOADED.search(line.rstrip()):
        return replace(log, loaded=True)
    if "system_info:" in line:
        return replace(log, cpu_features=frozenset(_FEATURE.findall(line)))
    return log


def _bytes(mib: str) -> int:
    return round(float(mib.replace(",", ".")) * MIB)
