"""`Report`: everything raw that was read of one machine, as one JSON document.

It is what a person sends with a report of a fault, and becomes a test without their machine. It holds no names of
people or hosts, no serial numbers, no addresses and no paths of their own (`without_private`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

Json: TypeAlias = Any
"""A JSON value."""

REPORT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was read. Paths are as the machine knows them; one that is not here did not exist or was not asked for."""

    system: str
    """As Python names it: Linux, Darwin, Windows."""
    architecture: str
    """As the system names it: x86_64, aarch64, arm64, AMD64."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Text files, or the part of them that probes look at."""
    folders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Folders and the names in them."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Symbolic links and the last part of where they lead; empty for what merely is there."""
    answers: Mapping[str, Json] = field(default_factory=dict)
    """What commands and libraries answered, by the name of the question."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Paths and questions that failed, and why."""

    def to_document(self) -> dict[str, Json]:
        """The report as a JSON document, without anything private."""
        from probes.privacy import without_private

        return {"report_version": REPORT_VERSION, **asdict(without_private(self))}

    @classmethod
    def from_document(cls, document: Json) -> Report:
        """The report that a document holds. Raises ValueError, in words, when it is none."""
        if not isinstance(document, Mapping) or "report_version" not in document:
            raise ValueError("it has no report_version")
        if document["report_version"] != REPORT_VERSION:
            raise ValueError(f"its report_version is {document['report_version']!r}, and {REPORT_VERSION} is known")
        return cls(
            system=_word(document, "system"),
            architecture=_word(document, "architecture"),
            files=_words(document, "files"),
            folders=_lists(document, "folders"),
            links=_words(document, "links"),
            answers=_mapping(document, "answers"),
            failures=_words(document, "failures"),
        )


def _word(document: Mapping[str, Json], name: str) -> str:
    word = document.get(name, "")
    if not isinstance(word, str):
        raise ValueError(f"its {name} is no text")
    return word


def _mapping(document: Mapping[str, Json], name: str) -> dict[str, Json]:
    mapping = document.get(name, {})
    if not isinstance(mapping, Mapping):
        raise ValueError(f"its {name} are no mapping")
    return dict(mapping)


def _words(document: Mapping[str, Json], name: str) -> dict[str, str]:
    words = _mapping(document, name)
    if not all(isinstance(word, str) for word in words.values()):
        raise ValueError(f"its {name} are not all text")
    return words


def _lists(document: Mapping[str, Json], name: str) -> dict[str, tuple[str, ...]]:
    lists = _mapping(document, name)
    for entries in lists.values():
        if not isinstance(entries, list | tuple) or not all(isinstance(entry, str) for entry in entries):
            raise ValueError(f"its {name} are not all lists of names")
    return {path: tuple(entries) for path, entries in lists.items()}
