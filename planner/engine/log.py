"""Reads llama-server's log: the buffers it reserved, and what grew afterwards.

Needs `--verbosity 4`: below it, current builds print no buffer (older ones print them always). Formats:
`src/llama-model.cpp` (load_tensors), `src/llama-kv-cache.cpp`, `src/llama-context.cpp`,
`tools/server/server-context.cpp`. Sizes are printed in MiB with two decimals (checkpoints: three).

Whatever stands before a message (clock, level, colours, the stamps of docker or journald) is passed over, and so
is what other builds spell in a way that is not known here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from planner.engine.log_table import DeviceMemory, event_rows, is_table_head, table_row
from planner.units import MIB

BufferKind = Literal["model", "kv", "compute", "output", "state"]

ROUNDING_BYTES = MIB // 200
"""Half of the last printed digit: a figure of the log may be this far from the true one."""

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SIZE = r"\d{1,12}[.,]\d{1,6}"
"""Bounded, here and below: digits without end are no figure, and no number for Python either."""
_MIB = rf"=\s*(?P<mib>{_SIZE}) MiB"
_BUFFERS: tuple[tuple[BufferKind, re.Pattern[str]], ...] = (
    ("model", re.compile(r"load_tensors:\s*(?P<device>\S+) model buffer size\s*" + _MIB)),
    ("kv", re.compile(r":\s*(?P<device>\S+) KV buffer size\s*" + _MIB)),
    ("state", re.compile(r":\s*(?P<device>\S+) (?:RS|DSV4 \S+ state) buffer size\s*" + _MIB)),
    # Not `reserve_compute_meta:` (before: `alloc_compute_meta:`), which speaks of a projector.
    ("compute", re.compile(r"(?<!compute_meta):\s*(?P<device>\S+) compute buffer size\s*" + _MIB)),
    ("output", re.compile(r":\s*(?P<device>\S+)\s+output buffer size\s*" + _MIB)),
)
_CACHE = re.compile(
    r"llama_kv_cache\w*: size =\s*[\d.,]+ MiB \(\s*(?P<cells>\d{1,12}) cells,\s*(?P<layers>\d{1,12}) layers"
    rf"(?:.*?K \((?P<k_type>\S+?)\):\s*(?P<k_mib>{_SIZE}) MiB)?"
    rf"(?:, V \((?P<v_type>\S+?)\):\s*(?P<v_mib>{_SIZE}) MiB)?"
)
_CONTEXT = re.compile(
    r"(?:llama_context|llama_new_context_with_model|llama_init_from_model): "
    r"(?P<key>n_ctx_seq|n_ctx_per_seq|n_ctx|n_batch|n_ubatch|n_seq_max)\s*= (?P<value>\d{1,12})\b"
)
_RENAMED = {"n_ctx_per_seq": "n_ctx_seq"}
_DEVICE = re.compile(r"using device (?P<name>\S+) \((?P<description>.*?)\)")
_PLACE = re.compile(r"using device \S+ \(.*\((?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\)", re.IGNORECASE)
_REMOTE = re.compile(r"RPC(?P<index>\d{0,6})\[(?P<endpoint>.+)\]")
_CHECKPOINT = re.compile(rf"created context checkpoint .*size = (?P<mib>{_SIZE}) MiB")
_PROMPT_CACHE = re.compile(rf"cache state: (?P<prompts>\d+) prompts, (?P<mib>{_SIZE}) MiB")
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
        return self.device.removesuffix("_Mapped").removesuffix("-REPACK")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCache:
    """One KV cache as llama.cpp sums it up."""

    cells: int
    """Per stream."""
    layers: int
    k_type: str = ""
    """The type as this build calls it, a fork's own ones included; empty where it does not say."""
    v_type: str = ""
    k_bytes: int | None = None
    v_bytes: int | None = None
    """None where the line names no values (keys alone are kept, or the line is an older one)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLog:
    """What a log has said so far. Nothing in it stands for nothing said: a missing line is not a zero."""

    buffers: tuple[Buffer, ...] = ()
    caches: tuple[LoggedCache, ...] = ()
    """In the order of creation."""
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
    devices: tuple[tuple[str, str], ...] = ()
    """Name and description of each accelerator that is used, in llama.cpp's order."""
    places: dict[str, str] = field(default_factory=dict)
    """Where those sit that say it, by name, as `0000:01:00.0`."""
    memory_before: tuple[DeviceMemory, ...] = ()
    """The last table that was printed before the model was loaded: what would be held, and what is free."""
    memory_at_end: tuple[DeviceMemory, ...] = ()
    """The table that an orderly end prints: what was held."""

    @property
    def cells(self) -> tuple[int, ...]:
        """Cells per stream of each KV cache, in the order of creation."""
        return tuple(cache.cells for cache in self.caches)

    def of_kind(self, kind: BufferKind) -> tuple[Buffer, ...]:
        """The buffers of this kind; none may mean that the log does not say."""
        return tuple(buffer for buffer in self.buffers if buffer.kind == kind)

    def buffer_bytes(self, kind: BufferKind, buffer_type: str | None = None) -> int | None:
        """The sum of these buffers; None when the log names none."""
        sizes = [buffer.size_bytes for buffer in self.of_kind(kind) if buffer_type in (None, buffer.device)]
        return sum(sizes) if sizes else None

    def device_of(self, buffer: Buffer) -> str:
        """The device whose memory a buffer takes, under the name that `--list-devices` gives it."""
        return self._listed(buffer.device) or buffer.placed_on

    def type_of(self, buffer: Buffer) -> str:
        """The type of a buffer, with remote devices under their listed names."""
        return self._listed(buffer.device) or buffer.device

    def _listed(self, name: str) -> str | None:
        """`RPC1` for `RPC0[127.0.0.1:50053]`, which is the first device of that endpoint; None of any other name."""
        remote = _REMOTE.fullmatch(name)
        if remote is None:
            return None
        names = [device for device, description in self.devices if description == remote["endpoint"]]
        index = int(remote["index"] or 0)
        return names[index] if index < len(names) else None


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
    except (ValueError, OverflowError, KeyError, TypeError, IndexError):
        return line


def read_log(lines: Iterable[str]) -> EngineLog:
    """Everything that the lines say."""
    log = EngineLog()
    for line in lines:
        log = read_line(log, line)
    return log


def read_line(log: EngineLog, line: str) -> EngineLog:
    """The log with one more line. What a dry pass (that of `--fit`) said is dropped when the real one begins."""
    line = _ANSI.sub("", plain_line(line))
    if _NEW_MODEL.search(line):
        return replace(log, buffers=(), caches=()) if _was_dry(log) else log
    if "buffer size" in line:
        return _with_buffer(log, line)
    if match := _CONTEXT.search(line):
        key = _RENAMED.get(match["key"], match["key"])
        return replace(log, context={**log.context, key: int(match["value"])})
    if match := _CACHE.search(line):
        return replace(log, caches=(*log.caches, _cache(match)))
    if match := _CHECKPOINT.search(line):
        return replace(log, checkpoints_bytes=log.checkpoints_bytes + _bytes(match["mib"]))
    if match := _PROMPT_CACHE.search(line):
        return replace(log, prompt_cache_bytes=_bytes(match["mib"]))
    if _LOADED.search(line.rstrip()):
        return replace(log, loaded=True)
    if "system_info:" in line:
        return replace(log, cpu_features=frozenset(_FEATURE.findall(line)))
    if match := _DEVICE.search(line):
        used = (match["name"], match["description"])
        if place := _PLACE.search(line):
            log = replace(log, places={**log.places, match["name"]: place["pci"].lower()})
        return log if used in log.devices else replace(log, devices=(*log.devices, used))
    return _with_table(log, line)


def _was_dry(log: EngineLog) -> bool:
    """Whether what was read so far reserved nothing: no weights, or caches without a byte. A second model that is
    loaded beside the first (a draft) is none of that.
    """
    kinds = [[b.size_bytes for b in log.of_kind(kind)] for kind in ("model", "kv")]
    return not any(kinds[0]) or (bool(kinds[1]) and not any(kinds[1]))


def _with_buffer(log: EngineLog, line: str) -> EngineLog:
    for kind, pattern in _BUFFERS:
        if match := pattern.search(line):
            buffer = Buffer(kind=kind, device=match["device"], size_bytes=_bytes(match["mib"]))
            return replace(log, buffers=(*log.buffers, buffer))
    return log


def _with_table(log: EngineLog, line: str) -> EngineLog:
    """The tables of all devices: one before the load, by `--fit`, and one at the end."""
    so_far = log.memory_at_end if log.loaded else log.memory_before
    if (rows := event_rows(line)) is not None:
        table = rows
    elif is_table_head(line):
        table = ()
    elif (row := table_row(line)) is not None:
        table = (*so_far, row)
    else:
        return log
    return replace(log, memory_at_end=table) if log.loaded else replace(log, memory_before=table)


def _cache(match: re.Match[str]) -> LoggedCache:
    return LoggedCache(
        cells=int(match["cells"]),
        layers=int(match["layers"]),
        k_type=match["k_type"] or "",
        v_type=match["v_type"] or "",
        k_bytes=None if match["k_mib"] is None else _bytes(match["k_mib"]),
        v_bytes=None if match["v_mib"] is None else _bytes(match["v_mib"]),
    )


def _bytes(mib: str) -> int:
    return round(float(mib.replace(",", ".")) * MIB)
