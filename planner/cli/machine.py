"""The options that describe a machine that is not this one, and the machine that they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from planner.errors import UsageError
from planner.hardware import Hardware
from planner.units import parse_size

_Command = TypeVar("_Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--ram", metavar="SIZE", help="Plan for a machine with this much free RAM, as in 16G."),
    click.option("--vram", metavar="SIZE,...", help="... and cards with so much free VRAM, as in 24G,12G."),
    click.option("--unified", metavar="SIZE", help="... or one memory of this size that graphics share."),
    click.option(
        "--machine", metavar="NAME", help="... or one by name: 'rtx 3060', '2x rtx 3090', n100, 'mac mini 16'."
    ),
    click.option(
        "--hardware",
        "report",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="REPORT.json",
        help="... or one that `planner hardware --json` was run on.",
    ),
)


def machine_options(command: _Command) -> _Command:
    """Give a command the options that describe another machine."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherMachine:
    """What the options say."""

    ram: str | None
    vram: str | None
    unified: str | None
    machine: str | None
    report: Path | None

    def __post_init__(self) -> None:
        ways = {
            "--ram or --vram": self.ram or self.vram,
            "--unified": self.unified,
            "--hardware": self.report,
            "--machine": self.machine,
        }
        given = [name for name, value in ways.items() if value is not None]
        if given == ["--ram or --vram", "--machine"] and self.vram is None:
            return  # RAM around a card
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} each describe a machine.", "Use one.")

    @property
    def is_asked(self) -> bool:
        """Whether any option describes a machine."""
        return any(value is not None for value in (self.ram, self.vram, self.unified, self.machine, self.report))

    @property
    def description(self) -> str:
        """Which options describe it, as the subject of a sentence about them: `--vram describes`."""
        words = {"--ram": self.ram, "--vram": self.vram, "--unified": self.unified, "--machine": self.machine}
        given = [name for name, value in {**words, "--hardware": self.report}.items() if value is not None]
        return f"{' and '.join(given)} describe{'s' if len(given) == 1 else ''}"

    @property
    def has_own_devices(self) -> bool:
        """Whether its accelerators are described, too, so that those that are here do not count."""
        return any(value is not None for value in (self.vram, self.unified, self.machine, self.report))

    def hardware(self) -> Hardware:
        """The machine: this one, where no option describes another."""
        if self.report is not None:
            from planner.hardware.replay import read_replay

            return read_replay(self.report).hardware
        here = Hardware.detect()
        if self.machine is not None:
            from planner.hardware.known import named_machine

            return named_machine(self.machine, here, parse_size(self.ram) if self.ram else None)
        if self.unified is not None:
            return _simulated(here, parse_size(self.unified), unified=True)
        if self.ram is None and self.vram is None:
            return here
        ram = parse_size(self.ram) if self.ram else here.memory.usable_bytes or 0
        return _simulated(here, ram, vram=[parse_size(size) for size in self.vram.split(",")] if self.vram else ())


def _simulated(here: Hardware, ram: int, **description: Any) -> Hardware:
    """A machine with this one's processor."""
    return Hardware.simulate(
        ram=ram, cpu_features=here.cpu_features, cpu_architecture=here.cpu_architecture, **description
    )
