"""What kind of place this process runs in: a container, WSL2, and what box it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from probes._groups import MOUNTS_KEPT
from probes.machine import Files, Where

Container = Literal["docker", "podman", "lxc", "kubernetes", "other"]

_GROUP_SIGNS: tuple[tuple[str, Container], ...] = (
    ("kubepods", "kubernetes"),
    ("/lxc", "lxc"),
    ("libpod", "podman"),
    ("docker", "docker"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this process runs."""

    board: str | None
    """The machine's product name, or the board's; None where nothing tells."""
    kernel: str | None
    """Linux: the kernel's release."""
    container: Container | None
    """What kind of container this is; None outside of one."""
    has_lxcfs: bool
    """Whether /proc shows this container's own memory instead of the host's."""
    is_wsl: bool
    """Whether it is Windows' Linux, WSL2."""
    sources: tuple[str, ...]
    warnings: tuple[str, ...]


def probe_place(root: Where = Path("/")) -> Place:
    """The place that the machine at `root` is. Never raises."""
    files = Files(root)
    try:
        kernel = (files.text("/proc/sys/kernel/osrelease") or "").strip() or None
        mounts = files.text("/proc/self/mountinfo", MOUNTS_KEPT) or ""
        has_lxcfs = bool(re.search(r" /proc/meminfo .* - fuse\.lxcfs ", mounts))
        container, source = _container(files, has_lxcfs)
        board = _board(files)
    except Exception as error:  # a probe never raises, whatever the files hold
        files.warnings.append(f"place: {error!r}")
        kernel, has_lxcfs, container, source, board = None, False, None, "", None
    return Place(
        board=board,
        kernel=kernel,
        container=container,
        has_lxcfs=has_lxcfs,
        is_wsl="microsoft" in (kernel or "").lower(),
        sources=(f"container: {source}",) if container else (),
        warnings=tuple(files.warnings),
    )


def _container(files: Files, has_lxcfs: bool) -> tuple[Container | None, str]:
    exists = files.machine.exists
    if exists("/var/run/secrets/kubernetes.io"):
        return "kubernetes", "/var/run/secrets/kubernetes.io"
    if exists("/run/.containerenv"):
        return "podman", "/run/.containerenv"
    if exists("/.dockerenv"):
        return "docker", "/.dockerenv"
    told = (files.text("/run/systemd/container") or "").strip()
    if told:
        return ("lxc" if "lxc" in told else "docker" if "docker" in told else "other"), "/run/systemd/container"
    if has_lxcfs:
        return "lxc", "/proc/meminfo is lxcfs's"
    groups = files.text("/proc/self/cgroup") or ""
    return next(((kind, "/proc/self/cgroup") for sign, kind in _GROUP_SIGNS if sign in groups), (None, ""))


def _board(files: Files) -> str | None:
    for path in ("/sys/class/dmi/id/product_name", "/proc/device-tree/model"):
        name = (files.text(path) or "").strip("\0 \n")
        if name and "to be filled" not in name.lower() and "system product name" not in name.lower():
            return name[:60]
    return None
