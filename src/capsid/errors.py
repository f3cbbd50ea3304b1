"""Errors a user can cause, each with one clear sentence and, if possible, a hint.

The command line prints ``error: ...`` and ``hint: ...`` from these and exits with ``exit_code``.
Any other exception is a bug in capsid and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CapsidError(Exception):
    """Base class of all errors that the user can fix."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message} (hint: {self.hint})"


class DataError(CapsidError):
    """The user's data is broken, empty or missing."""


class UnknownIdError(DataError):
    """An id that the data does not have."""


class ConfigError(CapsidError):
    """A name, option or value that does not exist; exit code 2, as for wrong usage."""

    exit_code = 2


class ArtifactError(CapsidError):
    """A folder that capsid wrote is missing, half-written, changed, or of another version."""


class NotFittedError(CapsidError):
    """An estimator was used before `fit`."""


def reason_of(error: BaseException) -> str:
    """The first line of what a library's error says, shortened; its type if it says nothing."""
    said = str(error).strip().splitlines()
    return said[0][:200] if said else type(error).__name__


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A hint that names the closest allowed values, then all of them."""
    allowed = sorted(allowed)
    close = difflib.get_close_matches(name, allowed, n=3, cutoff=0.5)
    listing = "allowed: " + ", ".join(allowed)
    return f"did you mean {' or '.join(repr(c) for c in close)}? {listing}" if close else listing
