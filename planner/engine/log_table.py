"""The table of all devices that llama.cpp prints: by `--fit` before a load, and when a server ends in order.

Format: `common/fit.cpp: common_memory_breakdown_print`, whole MiB; `--log-jsonl` prints the same as an event.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from planner.hardware import CPU_DEVICE
from planner.units import MIB

_HEAD = re.compile(r"memory breakdown \[MiB\]")
_NUMBER = r"\s*(-?\d{1,20})\s*"
_ROW = re.compile(
    r"memory_breakdown_print: \|\s+- (?P<name>\S+)(?: \((?P<description>.*)\))?\s*\|"
    rf"(?:{_NUMBER}={_NUMBER}\+ \()?{_NUMBER}={_NUMBER}\+{_NUMBER}\+{_NUMBER}(?:\)\s*\+{_NUMBER})?\|"
)
_EVENT = '"fit_memory_breakdown"'
_WRAPPED_MIB = 1 << 44
"""2^64 bytes in MiB: what older builds printed for a difference below zero is this much too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """One row of the table. Whole MiB, so each figure may be almost one MiB too small."""

    name: str
    """As `--list-devices` says it; `Host` for all host buffers, `CPU_REPACK` for a further type of buffer."""
    description: str = ""
    total_bytes: int | None = None
    """What the device has and what of it was free; None for the host, of which neither is printed."""
    free_bytes: int | None = None
    self_bytes: int
    """What this server holds in llama.cpp's buffers: the sum of the next three."""
    model_bytes: int
    context_bytes: int
    compute_bytes: int
    unaccounted_bytes: int | None = None
    """Total less free less `self`: drivers, other processes; below zero where buffers lie outside the device."""

    @property
    def device(self) -> str:
        """Whose memory it is."""
        return CPU_DEVICE if self.name == "Host" or self.name.startswith("CPU") else self.name


def is_table_head(line: str) -> bool:
    """Whether a table begins with this line."""
    return _HEAD.search(line) is not None


def table_row(line: str) -> DeviceMemory | None:
    """The row that this line is; None where it is none."""
    match = _ROW.search(line)
    if match is None:
        return None
    name, description, total, free, own, model, context, compute, unaccounted = match.groups()
    return DeviceMemory(
        name=name,
        description=description or "",
        total_bytes=_signed(total),
        free_bytes=_signed(free),
        self_bytes=int(own) * MIB,
        model_bytes=int(model) * MIB,
        context_bytes=int(context) * MIB,
        compute_bytes=int(compute) * MIB,
        unaccounted_bytes=_signed(unaccounted),
    )


def event_rows(line: str) -> tuple[DeviceMemory, ...] | None:
    """The rows of an event of `--log-jsonl`; None where this line is none."""
    if _EVENT not in line:
        return None
    try:
        rows = json.loads(line[line.index("{") :])["data"]["rows"]
        return tuple(
            DeviceMemory(
                name=str(row["name"]),
                description=str(row.get("description", "")),
                total_bytes=_signed(row.get("total")),
                free_bytes=_signed(row.get("free")),
                self_bytes=int(row["self"]) * MIB,
                model_bytes=int(row["model"]) * MIB,
                context_bytes=int(row["context"]) * MIB,
                compute_bytes=int(row["compute"]) * MIB,
                unaccounted_bytes=_signed(row.get("unaccounted")),
            )
            for row in rows
        )
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError):
        return None  # the line was cut off, or means something else in this build


def _signed(mib: str | int | None) -> int | None:
    """Bytes of a number of MiB that may have been printed without its sign."""
    if mib is None:
        return None
    number = int(mib)
    return (number - _WRAPPED_MIB if number >= _WRAPPED_MIB // 2 else number) * MIB
