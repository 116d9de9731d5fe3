"""A machine from a file: what `python -m probes --json` or `planner hardware --json` printed somewhere else."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import PlannerError
from planner.hardware.hardware import Hardware
from planner.hardware.values import SeenDevice

_LARGEST_BYTES = 64 << 20
"""A larger file is no report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDevice:
    """A device as an engine listed it when the report was made."""

    name: str
    description: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEngine:
    """The engine of the machine that a report was made of."""

    version: str
    devices: tuple[KeptDevice, ...]
    backends: tuple[str, ...] = ()
    """Those that showed; none in a report of before they were kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A machine that was looked at elsewhere."""

    system_view: Hardware
    """As its operating system showed it."""
    engine: KeptEngine | None
    """The engine that was asked there; None where none was."""
    report: Mapping[str, Any]
    """All that was read."""

    @property
    def hardware(self) -> Hardware:
        """The machine with the devices of its engine, where one was asked."""
        return self.system_view if self.engine is None else self.system_view.with_accelerators(self.engine.devices)


def full_report(
    report: Mapping[str, Any],
    version: str | None,
    devices: Sequence[SeenDevice] | None,
    backends: Sequence[str] = (),
) -> dict[str, Any]:
    """The document that `replay` reads: all that was read of a machine, and its engine's word without addresses."""
    from probes.privacy import scrubbed

    engine = None
    if devices is not None:
        listed = [
            {
                "name": scrubbed(device.name),
                "description": scrubbed(device.description),
                "total_bytes": device.total_bytes,
                "free_bytes": device.free_bytes,
            }
            for device in devices
        ]
        engine = {
            "version": scrubbed(version or "unknown"),
            "backends": [scrubbed(name) for name in backends],
            "devices": listed,
        }
    return {"engine": engine, "report": report}


def read_replay(path: Path) -> Replay:
    """The machine of a report in a file. Raises PlannerError where it cannot be read as one."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)  # the size that is told of a pipe or a device is none
        if len(content) > _LARGEST_BYTES:
            raise PlannerError(f"{path} is too large for a report of a machine.")
        document = json.loads(content.decode("utf-8"), parse_float=_finite, parse_constant=_finite)
    except OSError as error:
        raise PlannerError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise PlannerError(f"{path} is no JSON document.", "Make a report with `planner hardware --json`.") from None
    return replay(document)


def _finite(text: str) -> float:
    """A number of JSON, which knows no infinity."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def replay(document: Any) -> Replay:
    """The machine of a report: the raw one, or the full one that holds it."""
    full = document if isinstance(document, dict) else {}
    report = full.get("report", full)
    return Replay(system_view=Hardware.of(report), engine=_engine(full.get("engine")), report=report)


def _engine(document: Any) -> KeptEngine | None:
    if not isinstance(document, dict) or not isinstance(document.get("devices"), list):
        return None
    try:
        devices = [
            KeptDevice(
                name=str(device["name"]),
                description=str(device["description"]),
                total_bytes=_size(device["total_bytes"]),
                free_bytes=_size(device["free_bytes"]),
            )
            for device in document["devices"]
        ]
        backends = tuple(map(str, document.get("backends", ())))
    except (KeyError, TypeError, ValueError):
        raise PlannerError("The report's list of the engine's devices is not understood.") from None
    return KeptEngine(version=str(document.get("version", "unknown")), devices=tuple(devices), backends=backends)


def _size(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value
