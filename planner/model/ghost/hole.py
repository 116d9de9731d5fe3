"""Holes: files that end far beyond what was written of them, and take no disk for it."""

from __future__ import annotations

import sys
from pathlib import Path

from planner.errors import ModelError
from planner.units import format_bytes

_ON_LINUX: bool = sys.platform == "linux"
_PROBE_BYTES = 4 << 20
"""What is tried before a file of any size is made: many blocks of every file system, and soon written."""


def write_with_hole(path: Path, header: bytes, hole_bytes: int) -> None:
    """Write a file that begins with `header` and goes on with so many bytes of nothing.

    Raises OSError where it cannot be written, and ModelError where the file system has no holes: this is tried
    with a small file first, so the disk is never filled.
    """
    if hole_bytes > _PROBE_BYTES:
        _probe(path, hole_bytes)
    path.write_bytes(header)
    _make_hole(path, len(header) + hole_bytes)


def _probe(path: Path, hole_bytes: int) -> None:
    probe = path.with_name(f"{path.name}.probe")
    try:
        probe.write_bytes(b"\0")
        _make_hole(probe, _PROBE_BYTES)
        allocated = _allocated_bytes(probe)
    finally:
        probe.unlink(missing_ok=True)
    if allocated >= _PROBE_BYTES // 2:
        raise ModelError(
            f"The file system of {path.parent} cannot leave holes in files, so a ghost there would take "
            f"{format_bytes(hole_bytes)} of disk.",
            "Use a directory on ext4, XFS, Btrfs, ZFS, APFS or NTFS (XDG_CACHE_HOME names one).",
        )


def is_in_memory(directory: Path) -> bool:
    """Whether the directory's files lie in RAM, where a page of a hole that is read stays until the file goes."""
    if not _ON_LINUX:
        return False
    import psutil

    resolved = directory.resolve()
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    nearest = next((folder for folder in (resolved, *resolved.parents) if folder in mounts), None)
    return nearest is not None and mounts[nearest] in ("tmpfs", "ramfs")


def _make_hole(path: Path, size: int) -> None:
    """Extend the file to `size` bytes without writing any."""
    with path.open("r+b") as file:
        _mark_sparse(file.fileno())
        file.truncate(size)


if sys.platform == "win32":

    def _mark_sparse(descriptor: int) -> None:
        """Tell NTFS to leave holes in the file; it allocates them otherwise."""
        import ctypes
        import msvcrt

        set_sparse = 0x900C4  # FSCTL_SET_SPARSE
        handle = ctypes.c_void_p(msvcrt.get_osfhandle(descriptor))
        returned = ctypes.c_ulong()
        ctypes.windll.kernel32.DeviceIoControl(handle, set_sparse, None, 0, None, 0, ctypes.byref(returned), None)

    def _allocated_bytes(path: Path) -> int:
        """Return the bytes of disk that the file takes."""
        import ctypes

        high = ctypes.c_ulong()
        low: int = ctypes.windll.kernel32.GetCompressedFileSizeW(str(path), ctypes.byref(high))
        return (high.value << 32) | (low & 0xFFFFFFFF)

else:

    def _mark_sparse(descriptor: int) -> None:
        """Do nothing: POSIX file systems that can leave holes do so unasked."""

    def _allocated_bytes(path: Path) -> int:
        """Return the bytes of disk that the file takes."""
        # Units of 512 bytes, whatever the file system's block size is.
        return path.stat().st_blocks * 512
