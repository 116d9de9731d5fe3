"""A llama-server that is already running, looked at and not touched: its questions and answers, its command line, and
what the system says that it holds.
"""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from planner.errors import EngineError, UsageError
from planner.hardware import CPU_DEVICE
from planner.launch import Launch, resolve_context
from planner.measure.measurement import Sample
from planner.memory import Allocation, MemoryPlan
from planner.model import Model
from planner.units import format_bytes
from probes import probe_process

_TIMEOUT_S = 10.0
_KEY_VARIABLE = "LLAMA_API_KEY"
_HERE = ("127.0.0.1", "localhost", "::1")
_TOLERANCE = 0.02
"""A sum this close (as a fraction) needs no cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """What can be learned of a server without touching it. None is not known."""

    pid: int
    url: str | None
    """Where it listens."""
    command: tuple[str, ...]
    variables: Mapping[str, str]
    """Its environment variables that set options (LLAMA_ARG_...)."""
    folder: Path | None
    """Where it stands: relative names in its command are meant from there."""
    program: Path | None
    properties: Mapping[str, Any]
    """Its answer to /props; empty where it gives none (an API key, or too old)."""
    busy: int | None
    """Slots at work, as /slots says."""

    @property
    def model_path(self) -> Path | None:
        """The file that it says it serves."""
        named = self.properties.get("model_path")
        return (self.folder or Path()) / named if isinstance(named, str) and named else None

    @property
    def slots(self) -> int | None:
        """People it serves at once."""
        return _number(self.properties.get("total_slots"))

    @property
    def n_ctx_slot(self) -> int | None:
        """Tokens of one slot."""
        settings = self.properties.get("default_generation_settings")
        return _number(settings.get("n_ctx")) if isinstance(settings, dict) else None

    @property
    def build(self) -> str | None:
        """The commit that it was built from; `b1-86a2835` is how it says so."""
        info = self.properties.get("build_info")
        return info.rpartition("-")[2] if isinstance(info, str) and info else None


def find_server(target: str) -> RunningServer:
    """The server with this address or process id. Raises EngineError where there is none to be seen."""
    if target.isdecimal():
        pid = int(target)
        return _look(pid, _address_of(pid))
    try:
        parts = urlsplit(target if "//" in target else f"http://{target}")
        host, port = parts.hostname, parts.port
    except ValueError:  # a port beyond 65535, brackets that do not close
        host = port = None
    if not host or not port or parts.scheme != "http":
        raise UsageError(f"{target!r} is neither a process id nor an address like http://127.0.0.1:8080.")
    if host not in _HERE:
        raise UsageError(f"{target} is not on this machine, so what it holds is not to be seen.", "Run planner there.")
    return _look(_listener(host, port), _url(host, port))


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _look(pid: int, url: str | None) -> RunningServer:
    import psutil

    try:
        process = psutil.Process(pid)
        command = tuple(process.cmdline())
        folder, program, environment = process.cwd(), process.exe(), process.environ()
    except psutil.AccessDenied:
        raise EngineError(f"Process {pid} may not be looked at.", "Run planner as the person who runs it.") from None
    except psutil.NoSuchProcess:
        raise EngineError(f"There is no process {pid}.") from None
    if not command:
        raise EngineError(f"Process {pid} has ended, or is none of a program.")
    key = environment.get(_KEY_VARIABLE) or os.environ.get(_KEY_VARIABLE, "")
    properties = _get(url, "/props", key) if url else None
    if not isinstance(properties, dict) and not any("llama" in Path(name).name for name in (command[0], program)):
        raise EngineError(
            f"Process {pid} ({Path(command[0]).name}) is no llama-server: it is not called so, and answers nothing.",
            "Name the process that serves.",
        )
    slots = _get(url, "/slots", key) if url else None
    return RunningServer(
        pid=pid,
        url=url,
        command=command,
        variables={name: value for name, value in environment.items() if name.startswith("LLAMA_ARG_")},
        folder=Path(folder),
        program=Path(program) if program else None,
        properties=properties if isinstance(properties, dict) else {},
        busy=_at_work(slots),
    )


def _at_work(slots: Any) -> int | None:
    """How many slots are at work; None where this is no list of slots."""
    if not isinstance(slots, list) or not all(isinstance(slot, dict) for slot in slots):
        return None
    return sum(slot.get("is_processing") is True for slot in slots)


def _listener(host: str, port: int) -> int:
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        raise EngineError("The system does not say who listens on a port.", "Name the process id instead.") from None
    for connection in connections:
        listens = connection.status == psutil.CONN_LISTEN and connection.laddr
        if listens and connection.laddr.port == port and connection.pid:  # type: ignore[union-attr]
            return int(connection.pid)
    raise EngineError(
        f"Nothing on this machine that may be looked at listens on port {port} ({host}).",
        "Name the process id, or run planner as the person who runs the server.",
    )


def _address_of(pid: int) -> str | None:
    import psutil

    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except psutil.Error:
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN:
            host = connection.laddr.ip
            return _url({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), connection.laddr.port)
    return None


def _get(url: str, path: str, key: str) -> Any:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        response = connection.getresponse()
        return json.loads(response.read()) if response.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def settled_launch(server: RunningServer, launch: Launch, model: Model) -> tuple[Launch, str]:
    """The launch with the slots and the context that the server itself names, and why it differs, if it does.

    What a command leaves open the server chose (`--fit`), and what it does not name was said by its environment.
    """
    slots, n_ctx_slot = server.slots, server.n_ctx_slot
    if slots is None or n_ctx_slot is None:
        return launch, ""
    context = resolve_context(launch, model.hyperparameters.n_ctx_train)
    expected = min(context.n_ctx_seq, model.hyperparameters.n_ctx_train)
    if (context.n_seq_max, expected) == (slots, n_ctx_slot):
        return launch, ""
    unified = launch.unified
    settled = replace(
        launch, parallel=slots, kv_unified=unified, ctx_size=n_ctx_slot if unified else n_ctx_slot * slots
    )
    return settled, (
        f"The server says {slots} slots of {n_ctx_slot:,} tokens, where its command would give {context.n_seq_max} of "
        f"{expected:,}: planned for what it says."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedRow:
    """One part of what the process holds."""

    part: str
    low_bytes: int
    """Predicted for a server that nobody has asked anything yet."""
    high_bytes: int
    """Predicted for one whose every slot is full, and whose caches have grown to their limits."""
    measured_bytes: int | None
    cause: str
    """Why it lies outside; empty where it lies within."""


def read_sample(server: RunningServer) -> Sample:
    """What the server's process holds now. Raises EngineError where it has ended."""
    memory = probe_process(server.pid, exact=True)
    if memory is None:
        raise EngineError(f"Process {server.pid} has ended.")
    return Sample(
        phase="idle" if server.busy == 0 else "everyone",
        seconds=0.0,
        resident_bytes=memory.rss_bytes,
        anonymous_bytes=memory.anonymous_bytes,
        file_bytes=memory.file_bytes,
        peak_bytes=memory.peak_rss_bytes,
        swap_bytes=memory.swap_bytes,
    )


def mapped_bytes(pid: int, file: Path, root: Path = Path("/")) -> int | None:
    """Resident bytes of one mapped file, as /proc/PID/smaps counts them; None where that cannot be read."""
    try:
        text = (root / f"proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    total = 0
    counted = False
    for line in text.splitlines():
        if match := _MAPPING.match(line):
            counted = match["path"] == str(file)
        elif counted and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+\s*(?P<path>.*)$")


def hold_attached(fresh: MemoryPlan, full: MemoryPlan, sample: Sample, mapped: int | None) -> tuple[AttachedRow, ...]:
    """Hold what a process has against the prediction: `fresh` for no prompt yet, `full` for full contexts.

    `mapped` is what of the model's file is resident.
    """
    weights = sum(
        a.resident_bytes for a in fresh.allocations if a.component == "weights" and a.buffer.startswith("CPU_Mapped")
    )
    low = sum(_least(a) for a in fresh.allocations if a.device == CPU_DEVICE) - weights
    high = sum(_most(a) for a in full.allocations if a.device == CPU_DEVICE) - weights
    if full.launch.cache_ram < 0:
        high = full.hardware.host.total_bytes or high
    resident = sample.resident_bytes
    if resident is None or mapped is None:
        return (_row("resident", low, high + weights, resident),)
    header = round(weights * _TOLERANCE)
    return (_row("mapped weights", 0, weights + header, mapped), _row("everything else", low, high, resident - mapped))


def _least(allocation: Allocation) -> int:
    """Before the first prompt, which alone touches what compute buffers reserve; a range may be at its lower end."""
    if allocation.component in ("checkpoints", "compute"):
        return 0
    spread = 0 if allocation.low_bytes is None else allocation.reserved_bytes - allocation.low_bytes
    return max(0, allocation.resident_bytes - spread)


def _most(allocation: Allocation) -> int:
    """Used to the full and grown to its limit."""
    spread = 0 if allocation.high_bytes is None else allocation.high_bytes - allocation.reserved_bytes
    return allocation.resident_bytes + allocation.growth_bytes + spread


def _row(part: str, low: int, high: int, measured: int | None) -> AttachedRow:
    cause = ""
    if measured is None:
        cause = "this system does not say"
    elif measured > high * (1 + _TOLERANCE):
        cause = f"unexplained: {format_bytes(measured - high)} more than it should ever take"
    elif measured < low * (1 - _TOLERANCE):
        cause = f"{format_bytes(low - measured)} less: swapped out, or its command is not what it seems"
    return AttachedRow(part=part, low_bytes=low, high_bytes=high, measured_bytes=measured, cause=cause)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
