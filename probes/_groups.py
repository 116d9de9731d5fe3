"""Where the control groups are that bound this process: every ancestor, on every hierarchy, as files to read.

A limit on any ancestor binds, and a container may see its hierarchy under another path than the one that
/proc/self/cgroup names, so that both files are needed (cgroups(7), proc_pid_mountinfo(5)).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from probes._files import excerpt
from probes.machine import Files

Version = Literal[1, 2]

_CGROUP = "/proc/self/cgroup"
_MOUNTINFO = "/proc/self/mountinfo"
MOUNTS_KEPT = re.compile(r"^.* - (?:cgroup2?|fuse\.lxcfs) .*$", re.MULTILINE)
"""The lines of mountinfo that probes look at; the others tell where a person keeps things."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One control group."""

    version: Version
    """1 when the controller has its own hierarchy, 2 for the unified one."""
    directory: str
    """The absolute path of the directory that holds the group's files, as the machine knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    version: Version
    root: str
    """The group that the mount point shows: `/`, or a container's own group."""
    point: str
    controllers: frozenset[str]
    """Version 1: the controllers of this hierarchy. Version 2 mounts name none."""


def own_groups(files: Files, controller: str, process: str = "self") -> list[Group]:
    """The groups that bound a process for `controller`: version 1 first, each from the leaf to the root.

    On a hybrid machine both hierarchies are named and the controller lives in one of them; version 1 comes
    first because a controller that is bound there is absent from version 2. A group may have no files of the
    controller: then it sets no limit. Without cgroups there are no groups.
    """
    memberships = _memberships(files, controller, f"/proc/{process}/cgroup")
    mounts = _mounts(files) if memberships else []
    groups = []
    for version, path in memberships:
        hierarchy = [m for m in mounts if m.version == version and (version == 2 or controller in m.controllers)]
        for directory in _directories(files, path, hierarchy or [_usual_mount(version, controller)]):
            groups.append(Group(version=version, directory=directory))
    return groups


def _memberships(files: Files, controller: str, source: str) -> list[tuple[Version, str]]:
    """A process's group on each hierarchy: `4:memory:/path` (version 1) and `0::/path` (version 2)."""
    memberships: list[tuple[Version, str]] = []
    for line in (files.text(source) or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if not separator or not path.startswith("/"):
            files.warnings.append(f"{source}: line not understood: {excerpt(line)}")
        elif controller in controllers.split(","):
            memberships.append((1, path))
        elif hierarchy == "0" and not controllers:
            memberships.append((2, path))
    return sorted(memberships)


def _mounts(files: Files) -> list[_Mount]:
    """The cgroup mounts, in the order of mounting."""
    text = files.text(_MOUNTINFO, MOUNTS_KEPT)
    if text is None:
        return []
    mounts = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        mount, filesystem = left.split(" "), right.split(" ")
        if len(mount) < 5 or len(filesystem) < 3 or filesystem[0] not in ("cgroup", "cgroup2"):
            continue
        mounts.append(
            _Mount(
                version=2 if filesystem[0] == "cgroup2" else 1,
                root=_unescape(mount[3]),
                point=_unescape(mount[4]),
                controllers=frozenset(filesystem[-1].split(",")),
            )
        )
    if not mounts:
        files.warnings.append(f"{_MOUNTINFO}: names no cgroup mount, /sys/fs/cgroup is assumed")
    return mounts


def _usual_mount(version: Version, controller: str) -> _Mount:
    point = "/sys/fs/cgroup" if version == 2 else f"/sys/fs/cgroup/{controller}"
    return _Mount(version=version, root="/", point=point, controllers=frozenset())


def _directories(files: Files, path: str, mounts: list[_Mount]) -> list[str]:
    """The visible directories of the group at `path` and its ancestors, leaf first."""
    # Of several mounts of one hierarchy, the one with the highest root shows the most ancestors.
    for mount in sorted(mounts, key=lambda mount: len(_parts(mount.root))):
        below = _below(path, mount.root)
        if below is not None:
            return _ancestors(mount.point, below)
    mount = mounts[-1]
    files.warnings.append(f"{_CGROUP}: {path} is not below {mount.root}, so only {mount.point} itself is known")
    return [mount.point]


def _below(path: str, root: str) -> list[str] | None:
    """The parts of `path` below `root`; None when it is elsewhere or outside of the namespace (`/..`)."""
    parts, root_parts = _parts(path), _parts(root)
    if ".." in parts or parts[: len(root_parts)] != root_parts:
        return None
    return parts[len(root_parts) :]


def _ancestors(mount_point: str, parts: list[str]) -> list[str]:
    return ["/".join([mount_point.rstrip("/"), *parts[:depth]]) for depth in range(len(parts), -1, -1)]


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _unescape(text: str) -> str:
    r"""A mountinfo field: the kernel writes space, tab, newline and backslash as `\040` and the like."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
