"""Values out of files that may come from anybody: each is taken with what must hold for it, or refused in one sentence.

Readers of artifacts use these where a wrong value would not be noticed by itself, and put all they do inside
`interpreting`, so that whatever else a file makes them raise is still one sentence with a hint. Knows no artifact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from capsid.config import UnknownKindError
from capsid.errors import ArtifactError, CapsidError
from capsid.ragged import Ragged

HINT = "the files were changed or are of different fits: fit again, or take the folder from where it came from"


@contextlib.contextmanager
def interpreting(path: Path, what: str) -> Iterator[None]:
    """Whatever the content of `path` makes a reader raise becomes one ArtifactError that names it and has a hint."""
    try:
        yield
    except UnknownKindError:
        # The folder may be whole: the package that has the part is missing.
        raise
    except CapsidError as error:
        if isinstance(error, ArtifactError) and error.hint:
            raise
        raise ArtifactError(f"{path} is not a {what} that can be used: {error.message[:300]}", hint=HINT) from error
    except Exception as error:  # a file can make a reader raise anything
        said = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {said[0][:200]}" if said else type(error).__name__
        raise ArtifactError(f"{path} is not a {what} that can be used: {reason}", hint=HINT) from error


def refuse(message: str) -> ArtifactError:
    """An error for a value that cannot be right."""
    return ArtifactError(message, hint=HINT)


def mapping(value: Any, what: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise refuse(f"{what} is a {type(value).__name__}, not an object")
    return value


def texts(value: Any, what: str) -> list[str]:
    """A list of texts."""
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise refuse(f"{what} is not a list of texts")
    return value


def text(value: Any, what: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise refuse(f"{what} is a {type(value).__name__}, not a text")
    return value


def whole(value: Any, what: str, *, least: int, most: int) -> int:
    """A whole number in these bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise refuse(f"{what} is {str(value)[:40]}, not a whole number from {least:,} to {most:,}")
    return value


def finite(arrays: Mapping[str, np.ndarray], what: str) -> dict[str, np.ndarray]:
    """Arrays without NaN and infinity."""
    for name, array in arrays.items():
        if array.dtype.kind == "c" or (array.dtype.kind == "f" and not np.isfinite(array).all()):
            raise refuse(f"{what} {name} is not made of finite numbers")
    return dict(arrays)


def integers(
    arrays: Mapping[str, np.ndarray], name: str, what: str, *, count: int | None = None, least: int = 0, below: int
) -> np.ndarray:
    """A row of whole numbers, each from `least` to `below` - 1."""
    if name not in arrays:
        raise refuse(f"{what} has no array {name!r}")
    array = arrays[name]
    # Indices of 64 bits without a sign cannot be mixed with others.
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.dtype == np.uint64:
        raise refuse(f"{what}: {name} is not a row of whole numbers")
    if count is not None and len(array) != count:
        raise refuse(f"{what}: {name} has {len(array):,} numbers, not {count:,}")
    if len(array) and not least <= int(array.min()) <= int(array.max()) < below:
        raise refuse(f"{what}: {name} has numbers outside {least:,} to {below - 1:,}")
    return array


def ragged(
    arrays: Mapping[str, np.ndarray],
    values: str,
    offsets: str,
    what: str,
    *,
    count: int | None = None,
    least: int = 0,
    below: int,
) -> Ragged:
    """Rows whose offsets fit their values."""
    row = integers(arrays, values, what, least=least, below=below)
    places = integers(arrays, offsets, what, count=None if count is None else count + 1, below=len(row) + 1)
    if not len(places) or places[0] != 0 or places[-1] != len(row) or (np.diff(places.astype(np.int64)) < 0).any():
        raise refuse(f"{what}: {offsets} do not cut {values} into rows")
    return Ragged(row, places)
