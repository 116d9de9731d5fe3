"""What one process holds now, as the kernel counts it. Made to be asked ten times a second."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from probes._files import describe, sizes_in_bytes

_GONE = (FileNotFoundError, NotADirectoryError, ProcessLookupError)
"""No /proc/PID, or ESRCH: the process ended between opening one of its files and reading it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """The memory of one process. None is unknown, and `reasons` says why.

    The Pss figures count a page that n processes share as 1/n of a page in each, so that processes add up.
    """

    rss_bytes: int | None
    """All resident pages, shared ones in full; with mmap, the weights' page cache too (Rss; VmRSS)."""
    anonymous_bytes: int | None
    """Resident memory without a file: KV cache, compute, repacked weights, heap (Pss_Anon; RssAnon)."""
    file_bytes: int | None
    """Resident pages of mapped files: mmapped weights, program text; reclaimable (Pss_File; RssFile)."""
    shared_bytes: int | None
    """Resident pages of shared memory and tmpfs (Pss_Shmem; RssShmem)."""
    swap_bytes: int | None
    """What was swapped out (SwapPss; VmSwap)."""
    peak_rss_bytes: int | None
    """The highest `rss_bytes` so far (VmHWM): files and anonymous memory mixed."""
    private_bytes: int | None = None
    """Elsewhere than on Linux: Windows' private commit, macOS' footprint (with graphics buffers, without files)."""
    reasons: tuple[str, ...]
    """Why a figure is unknown or comes from the second-best source, one line each."""


_SOURCES = {
    "rss_bytes": ("Rss", "VmRSS"),
    "anonymous_bytes": ("Pss_Anon", "RssAnon"),
    "file_bytes": ("Pss_File", "RssFile"),
    "shared_bytes": ("Pss_Shmem", "RssShmem"),
    "swap_bytes": ("SwapPss", "VmSwap"),
}
"""Per field, its name in smaps_rollup and, where that is missing, in status. That counts shared pages in full
and may be off by some pages per thread (proc_pid_status(5))."""


def probe_process(pid: int, root: Path = Path("/"), *, exact: bool = True) -> ProcessMemory | None:
    """The memory of process `pid`; None when it is gone, which includes a zombie: it holds nothing any more.

    Linux: /proc/PID/smaps_rollup and status. Elsewhere: the resident size, by psutil. Never raises.

    The kernel walks every resident page for smaps_rollup: 5 ms per GiB of mapped files and 20 ms per GiB
    of anonymous memory were measured. Without `exact` only status is read, in 0.1 ms for any size.
    """
    if sys.platform != "linux" and root == Path("/"):
        return _from_psutil(pid)
    reasons: list[str] = []
    try:
        status = _read(root, f"/proc/{pid}/status", reasons)
    except _GONE:
        return None
    if re.search(r"^State:\s+[ZX]", status, re.MULTILINE):
        return None
    rollup = ""
    try:
        if exact:
            rollup = _read(root, f"/proc/{pid}/smaps_rollup", reasons)
    except ProcessLookupError:
        return None
    except (FileNotFoundError, NotADirectoryError):
        reasons.append(f"/proc/{pid}/smaps_rollup: not found, it came with Linux 4.14")
    return _assemble(sizes_in_bytes(rollup), sizes_in_bytes(status), reasons)


def _read(root: Path, path: str, reasons: list[str]) -> str:
    """The text of a file of the process, empty with a reason when it is not ours to read. Raises `_GONE`."""
    try:
        return (root / path.lstrip("/")).read_bytes().decode("utf-8", "replace")
    except _GONE:
        raise
    except OSError as error:
        reasons.append(f"{path}: {describe(error)}")
        return ""


def _assemble(rollup: dict[str, int], status: dict[str, int], reasons: list[str]) -> ProcessMemory:
    figures: dict[str, int | None] = {}
    for field, (exact, fallback) in _SOURCES.items():
        figures[field] = rollup.get(exact, status.get(fallback))
        if figures[field] is None:
            reasons.append(f"{field}: unknown, neither {exact} in smaps_rollup nor {fallback} in status")
        elif exact not in rollup:
            reasons.append(f"{field}: {fallback} of status")
    peak_rss_bytes = status.get("VmHWM")
    if peak_rss_bytes is None:
        reasons.append("peak_rss_bytes: unknown, no VmHWM in status")
    return ProcessMemory(**figures, peak_rss_bytes=peak_rss_bytes, reasons=tuple(reasons))


def _from_psutil(pid: int) -> ProcessMemory | None:
    """The resident size; on Windows also its peak and what is private, on a Mac the footprint."""
    rss_bytes = peak_rss_bytes = private_bytes = None
    reasons = ["anonymous_bytes, file_bytes, shared_bytes, swap_bytes: unknown on this platform"]
    try:
        import psutil

        memory = psutil.Process(pid).memory_info()
        rss_bytes, peak_rss_bytes = memory.rss, getattr(memory, "peak_wset", None)
        private_bytes = getattr(memory, "private", None)
    except Exception as error:  # a probe never raises, whatever the platform does
        if type(error).__name__ in ("NoSuchProcess", "ZombieProcess"):
            return None
        reasons.append(f"rss_bytes: unknown, psutil: {error!r}")
    if peak_rss_bytes is None:
        reasons.append("peak_rss_bytes: unknown on this platform")
    if sys.platform == "darwin":
        try:
            private_bytes = read_footprint(pid)
        except Exception as error:  # a library that is not as its documentation says
            reasons.append(f"private_bytes: unknown, proc_pid_rusage: {error}")
    return ProcessMemory(
        rss_bytes=rss_bytes,
        anonymous_bytes=None,
        file_bytes=None,
        shared_bytes=None,
        swap_bytes=None,
        peak_rss_bytes=peak_rss_bytes,
        private_bytes=private_bytes,
        reasons=tuple(reasons),
    )


_FOOTPRINT_AT = 16 + 7 * 8
"""Where ri_phys_footprint stands in rusage_info_v0 (sys/resource.h): behind an identifier and seven figures."""
_RUSAGE_BYTES = 512
"""More than any version of the structure takes."""


def read_footprint(pid: int, library: str = "/usr/lib/libproc.dylib") -> int:
    """What macOS charges a process for: private and compressed memory and graphics buffers, no mapped files.

    Raises OSError where it cannot be had. Read in Apple's headers, not run.
    """
    import ctypes

    room = ctypes.create_string_buffer(_RUSAGE_BYTES)
    if ctypes.CDLL(library).proc_pid_rusage(pid, 0, room) != 0:
        raise OSError(f"no answer for process {pid}")
    return int.from_bytes(room.raw[_FOOTPRINT_AT : _FOOTPRINT_AT + 8], "little")
