"""The errors that a person may see: one sentence that names the thing, and the way out."""

from __future__ import annotations


class PlannerError(Exception):
    """Something failed for a reason that the person can act on.

    `message` is one sentence that names the thing; `hint` says what to do next, or is empty. The command
    line turns the class into an exit code (`planner.cli`); nothing below it knows about exit codes.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class UsageError(PlannerError):
    """The arguments make no sense together."""


class ModelError(PlannerError):
    """A model file cannot be read as what it claims to be."""


class CutOffError(ModelError):
    """A model file ends before its tensors do, behind a header that is whole."""


class EngineError(PlannerError):
    """llama.cpp is missing, does not run here, or died; its own words are quoted."""


class DoesNotFitError(PlannerError):
    """The launch is predicted not to fit, so nothing was started."""


def words_of(error: OSError) -> str:
    """What the system refused, as a sentence: a full disk, a folder without permission."""
    return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}."
