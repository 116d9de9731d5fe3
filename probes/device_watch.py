"""What a process holds on graphics processors and what they have free, asked again and again: made for one run.

What stays the same is looked for once, when it is opened. Each look is then one pass over one process's open files
and a few questions to a library that is there already; nothing of it is remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from probes._files import to_integer
from probes.accelerator import has_nvidia_driver
from probes.drm import cards
from probes.machine import Files, Where, machine_at
from probes.nvidia import WSL_MARGIN_BYTES, OpenNvml
from probes.place import probe_place
from probes.process_devices import ProcessDevices, process_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeMemory:
    """What one graphics processor has free now. None is unknown."""

    device: str
    """Where it sits, as `0000:01:00.0`."""
    own_bytes: int | None
    """Of its own memory; of one that has none, of what firmware set aside for it."""
    shared_bytes: int | None
    """Of the machine's memory that its driver lets it take (amdgpu's GTT)."""


class DeviceWatch:
    """Looks at the graphics processors of this machine until it is closed. Nothing here raises."""

    def __init__(self, root: Where = Path("/")) -> None:
        self._machine = machine_at(root)
        self._nvml: OpenNvml | None = None
        self._reason = ""
        self._amd: dict[str, str] = {}
        self._margin_bytes = 0

    def __enter__(self) -> DeviceWatch:
        try:
            self._open()
        except Exception as error:  # whatever a driver answers
            if self._machine.system != "Windows":  # where it is asked without a sign of NVIDIA's driver
                self._reason = f"nvml: {str(error) or type(error).__name__}"
        return self

    def _open(self) -> None:
        if self._machine.system == "Linux":
            found = cards(Files(self._machine))
            self._amd = {card.pci: card.directory for card in found if card.pci and card.driver == "amdgpu"}
            self._margin_bytes = WSL_MARGIN_BYTES if probe_place(self._machine).is_wsl else 0
        if has_nvidia_driver(self._machine):
            self._nvml = OpenNvml(self._machine)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._nvml is not None:
            self._nvml.close()

    def held(self, pid: int) -> ProcessDevices:
        """What a process holds now, as `probe_process_devices` says it."""
        return process_devices(self._machine, pid, self._nvml, self._reason)

    def free(self) -> tuple[FreeMemory, ...]:
        """What every processor that tells it has free now."""
        try:
            return (*self._free_of_nvidia(), *self._free_of_amd())
        except Exception:  # a driver that breaks down in the middle of a run
            return ()

    def _free_of_nvidia(self) -> Iterator[FreeMemory]:
        for pci, size in self._nvml.free_bytes().items() if self._nvml is not None else ():
            free = None if size is None else max(0, size - self._margin_bytes)
            yield FreeMemory(device=pci, own_bytes=free, shared_bytes=None)

    def _free_of_amd(self) -> Iterator[FreeMemory]:
        for pci, directory in self._amd.items():
            yield FreeMemory(
                device=pci, own_bytes=self._left(directory, "vram"), shared_bytes=self._left(directory, "gtt")
            )

    def _left(self, directory: str, kind: str) -> int | None:
        total, used = (self._size(f"{directory}/mem_info_{kind}_{name}") for name in ("total", "used"))
        return None if total is None or used is None else max(0, total - used)

    def _size(self, path: str) -> int | None:
        try:  # past the machine, which reads every file once
            return to_integer(self._machine.path(path).read_text(encoding="ascii", errors="replace").strip())
        except OSError:
            return None
