"""What of a report is a person's own, and how it is taken out without changing what the probes make of it.

Every replacement is the same everywhere in the report, so that a path that one file names still leads to another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from probes.programs import is_well_known
from probes.report import Json, Report

_GROUP_WORDS = re.compile(
    r"(system|user|machine|app|session|background|init|kubepods|lxc|docker|podman|machine-lxc)(\.slice|\.scope)?"
    r"|kubepods-(besteffort|burstable)\.slice|besteffort|burstable|user-[0-9]+\.slice|user@[0-9]+\.service"
    r"|lxc\.(payload|monitor)|ns|([a-z]+-)?group-\d+|sys|fs|cgroup|unified|memory|cpu|cpuset|proc|self"
)
"""Names of control groups that everyone has, and those that stand for others here."""

_HOME = re.compile(r"(/home/|/Users/|\\Users\\)[^/\\\s:\"']+")
_UUID = re.compile(r"\b[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_LONG_HEX = re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{32,64}\b")
_ADDRESS = re.compile(r"(?<![\w.])(?!127\.)(?:\d{1,3}\.){3}\d{1,3}(?![\w.-])")
_MAC = re.compile(r"\b[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}\b")


def without_private(report: Report) -> Report:
    """The report with stand-ins for names of groups and unknown programs, homes, addresses and identifiers."""
    scrub = _Scrubber(_group_names(report))
    return replace(
        report,
        files={scrub.text(path): scrub.text(text) for path, text in report.files.items()},
        folders={scrub.text(path): tuple(map(scrub.text, names)) for path, names in report.folders.items()},
        links={scrub.text(path): scrub.text(target) for path, target in report.links.items()},
        answers={name: scrub.value(answer) for name, answer in report.answers.items()},
        failures={scrub.text(name): scrub.text(reason) for name, reason in report.failures.items()},
    )


def scrubbed(text: str) -> str:
    """Text with stand-ins for homes, addresses and identifiers."""
    text = _HOME.sub(r"\1someone", text)
    text = _UUID.sub("00000000-0000-0000-0000-000000000000", text)
    text = _LONG_HEX.sub("0", text)
    text = _MAC.sub("00:00:00:00:00:00", text)
    return _ADDRESS.sub("192.0.2.1", text)


def _group_names(report: Report) -> list[str]:
    """The parts of control group paths that may tell something, in the order of their appearance."""
    names: dict[str, None] = {}
    for line in report.files.get("/proc/self/cgroup", "").splitlines():
        names |= dict.fromkeys(line.partition(":")[2].partition(":")[2].split("/"))
    for line in report.files.get("/proc/self/mountinfo", "").splitlines():
        words = line.split(" ")
        if " - cgroup" in line and len(words) > 3:
            names |= dict.fromkeys(words[3].split("/"))
    return [name for name in names if name and name != ".." and not _GROUP_WORDS.fullmatch(name)]


def _kind(group: str) -> str:
    """What made the group, which its name may tell: `docker-` of `docker-1b2c.scope`."""
    found = re.match(r"docker|libpod|lxc|kubepods", group)
    return f"{found[0]}-" if found else ""


class _Scrubber:
    def __init__(self, groups: Iterable[str]) -> None:
        self._groups = {name: f"{_kind(name)}group-{number}" for number, name in enumerate(groups, 1)}
        self._programs: dict[str, str] = {}
        # A group's name counts only as a whole part of a path.
        names = "|".join(re.escape(name) for name in sorted(self._groups, key=len, reverse=True))
        self._in_path = re.compile(rf"(?<=/)({names})(?=[/\s]|$)", re.MULTILINE) if names else None

    def text(self, text: str) -> str:
        if self._in_path is not None:
            text = self._in_path.sub(lambda match: self._groups[match[1]], text)
        return scrubbed(text)

    def value(self, value: Json) -> Json:
        """A JSON value; `process` names a program, which is kept only where it is widely known."""
        if isinstance(value, dict):
            return {
                key: self._program(entry) if key == "process" and isinstance(entry, str) else self.value(entry)
                for key, entry in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(entry) for entry in value]
        return self.text(value) if isinstance(value, str) else value

    def _program(self, name: str) -> str:
        if is_well_known(name):
            return name
        return self._programs.setdefault(name, f"program {len(self._programs) + 1}")
