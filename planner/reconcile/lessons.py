"""What one run teaches, and what several of them together determine.

A run teaches only what its figures determine. What may as well be something else (another process on a card, a
formula that is off in one place) is believed when two runs say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from planner.hardware import DeviceKind, kind_of_device
from planner.memory.learned import Correction, LearnedSize
from planner.units import MIB

AGREEMENT = 0.02
"""Two runs say the same when they differ by no more than this fraction."""
_DRIVER_AGREEMENT_BYTES = 8 * MIB
"""The same for what drivers take, of which llama.cpp prints whole MiB in four figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverLesson:
    """What was taken on a device during a run beside llama.cpp's buffers."""

    device: str
    description: str
    """What the device calls itself."""
    driver: str | None = None
    """Its driver with the version; None where it was not told, as in records of before."""
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeLesson:
    """What a build reserved for computing where the prediction is an estimate and no dry run was there to say it."""

    device: str
    predicted_bytes: int
    reserved_bytes: int
    corrected: bool
    """Whether the prediction had a correction in it already."""

    @property
    def ratio(self) -> float:
        """Reserved over predicted."""
        return self.reserved_bytes / self.predicted_bytes

    @property
    def kind(self) -> DeviceKind:
        """The back end."""
        return kind_of_device(self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """Everything that one run teaches about memory."""

    overhead_bytes: int | None = None
    """What the process held beside everything that the plan names; None where it could not be told."""
    drivers: tuple[DriverLesson, ...] = ()
    compute: tuple[ComputeLesson, ...] = ()

    def document(self) -> dict[str, Any]:
        """As it is kept."""
        return asdict(self)

    @classmethod
    def read(cls, document: dict[str, Any]) -> Lessons:
        """From what was kept. Raises TypeError, KeyError or ValueError where it is something else."""
        overhead = document["overhead_bytes"]
        if not (overhead is None or (type(overhead) is int and overhead > 0)):
            raise ValueError("an overhead is a size")
        drivers = tuple(DriverLesson(**lesson) for lesson in document["drivers"])
        compute = tuple(ComputeLesson(**lesson) for lesson in document["compute"])
        for driver in drivers:
            _check(driver.device, driver.size_bytes, least=0)
            _check(driver.driver or "", least=0)
        for lesson in compute:
            _check(lesson.device, lesson.reserved_bytes, lesson.predicted_bytes, least=1)
        return cls(overhead_bytes=overhead, drivers=drivers, compute=compute)


def _check(device: object, *sizes: object, least: int) -> None:
    """Raise ValueError where something else was kept than a name and sizes."""
    if not isinstance(device, str) or not all(type(size) is int and size >= least for size in sizes):
        raise ValueError("a lesson is of sizes on a device")


def driver_told(lessons: Sequence[tuple[str, DriverLesson]], total_bytes: int | None = None) -> LearnedSize | None:
    """What the runs of a device with one driver (id and lesson, oldest first) say together: the larger of the last two,
    if they agree. What is more than the device's memory, where that is known, says nothing.
    """
    lessons = [entry for entry in lessons if total_bytes is None or entry[1].size_bytes <= total_bytes]
    if len(lessons) < 2:
        return None
    (_, before), (run, last) = lessons[-2:]
    if before.description != last.description:
        return None
    difference = abs(before.size_bytes - last.size_bytes)
    if difference > max(_DRIVER_AGREEMENT_BYTES, AGREEMENT * last.size_bytes):
        return None
    return LearnedSize(max(before.size_bytes, last.size_bytes), run)


def correction_told(lessons: Sequence[tuple[str, ComputeLesson]]) -> Correction | None:
    """What runs of one architecture, back end and build say together: one ratio, if buffers of different sizes have it.

    One size alone cannot tell a factor from a term. A run that contradicts the correction that it was planned with
    takes it away.
    """
    believed: list[tuple[str, ComputeLesson]] = []
    for run, lesson in lessons:
        if not lesson.corrected:
            believed.append((run, lesson))
        elif abs(lesson.ratio - 1) > AGREEMENT:
            believed = []
    if len({lesson.predicted_bytes for _, lesson in believed}) < 2:
        return None
    ratios = sorted(lesson.ratio for _, lesson in believed)
    ratio = ratios[len(ratios) // 2]
    spread = max(ratios[-1] / ratio - 1, 1 - ratios[0] / ratio)
    if spread > AGREEMENT or abs(ratio - 1) < 1e-9:
        return None
    return Correction(ratio=ratio, spread=max(spread, 0.001), runs=tuple(run for run, _ in believed))
