"""A stand-in for the module `pynvml`, with the answers and the errors of real drivers (../shared/PROBES.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """pynvml's base of errors; its classes are named after the codes."""


class NVMLError_NotSupported(NVMLError):
    pass


class NVMLError_NotFound(NVMLError):
    pass


class NVMLError_Unknown(NVMLError):
    pass


class NVMLError_GpuIsLost(NVMLError):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


@dataclass(kw_only=True)
class FakeProcess:
    pid: int
    usedGpuMemory: int | None
    gpuInstanceId: int | None = 0xFFFFFFFF


@dataclass(kw_only=True)
class FakeCard:
    """One card; `memory` holds total, reserved, free and used, or the error that asking raises."""

    name: str | Exception
    pci: str
    memory: dict[str, int] | Exception
    is_lost: bool = False
    knows_version_2: bool = True
    slices: Sequence[FakeCard | None] = ()
    instance: int | None = None
    compute: Sequence[FakeProcess] = ()
    graphics: Sequence[FakeProcess] = ()


@dataclass
class FakeNvml:
    cards: Sequence[FakeCard] = ()
    init_error: Exception | None = None
    NVMLError: type[Exception] = NVMLError
    nvmlMemory_v2: int = 0x02000028
    is_open: bool = field(default=False)
    times_opened: int = field(default=0)

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise self.init_error
        self.is_open = True
        self.times_opened += 1

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.95.05"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeCard:
        if self.cards[index].is_lost:
            raise NVMLError_GpuIsLost
        return self.cards[index]

    def nvmlDeviceGetName(self, card: FakeCard) -> str:
        return _or_raise(card.name)

    def nvmlDeviceGetPciInfo(self, card: FakeCard) -> Any:
        return SimpleNamespace(busId=card.pci.encode())

    def nvmlDeviceGetMemoryInfo(self, card: FakeCard, version: int | None = None) -> Any:
        memory = _or_raise(card.memory)
        if version is None:
            used = memory["used"] + memory["reserved"]
            return SimpleNamespace(total=memory["total"], free=memory["free"], used=used)
        if not card.knows_version_2:
            raise NVMLError_Unknown
        return SimpleNamespace(**memory)

    def nvmlDeviceGetMigMode(self, card: FakeCard) -> list[int]:
        if not card.slices:
            raise NVMLError_NotSupported
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, card: FakeCard) -> int:
        return len(card.slices)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: FakeCard, index: int) -> FakeCard:
        child = card.slices[index]
        if child is None:
            raise NVMLError_NotFound
        return child

    def nvmlDeviceGetGpuInstanceId(self, card: FakeCard) -> int | None:
        return card.instance

    def nvmlDeviceGetComputeRunningProcesses(self, card: FakeCard) -> list[FakeProcess]:
        return list(card.compute)

    def nvmlDeviceGetGraphicsRunningProcesses(self, card: FakeCard) -> list[FakeProcess]:
        if isinstance(card.memory, Exception):
            raise NVMLError_NotSupported
        return list(card.graphics)


def _or_raise(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


def memory(total: int, reserved: int, used: int) -> dict[str, int]:
    """What version 2 tells: the three others make the total."""
    return {"total": total, "reserved": reserved, "used": used, "free": total - reserved - used}
