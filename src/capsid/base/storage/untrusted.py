"""Checks values from untrusted files: a value that breaks its rule is refused with a one-sentence error.

Readers of artifacts use these checks where a wrong value would go unnoticed, and do all their work inside
`interpreting`, which turns any other exception into one sentence with a hint. Knows no artifact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from capsid.base.config import UnknownKindError
from capsid.base.storage.mapped_arrays import blocks_of
from capsid.errors import ArtifactError, CapsidError, reason_of
from capsid.ragged import Ragged

HINT = "the files were changed or belong to different fits: fit again, or copy the folder again from its source"


@contextlib.contextmanager
def interpreting(path: Path, what: str) -> Iterator[None]:
    """Turn any exception caused by the content of `path` into an ArtifactError with its name and a hint."""
    try:
        yield
    except UnknownKindError:
        # The folder may be intact: only the package that provides the part is missing.
        raise
    except CapsidError as error:
        if isinstance(error, ArtifactError) and error.hint:
            raise
        raise ArtifactError(f"{path} is not a usable {what}: {error.message[:300]}", hint=HINT) from error
    except Exception as error:  # a file can make a reader raise anything
        kind, said = type(error).__name__, reason_of(error)
        reason = kind if said == kind else f"{kind}: {said}"
        raise ArtifactError(f"{path} is not a usable {what}: {reason}", hint=HINT) from error


def refuse(message: str) -> ArtifactError:
    """An error for a value that cannot be right."""
    return ArtifactError(message, hint=HINT)


def mapping(value: Any, what: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise refuse(f"{what} is a {type(value).__name__}, not an object")
    return value


def texts(value: Any, what: str) -> list[str]:
    """A list of strings."""
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise refuse(f"{what} is not a list of strings")
    return value


def text(value: Any, what: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise refuse(f"{what} is a {type(value).__name__}, not a string")
    return value


def whole(value: Any, what: str, *, least: int, most: int) -> int:
    """A whole number within these bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise refuse(f"{what} is {value!r:.40}, not a whole number from {least:,} to {most:,}")
    return value


def finite(arrays: Mapping[str, np.ndarray], what: str) -> dict[str, np.ndarray]:
    """Arrays without NaN and infinity."""
    for name, array in arrays.items():
        flat = array.reshape(-1)
        # In blocks: the array may be a mapped file larger than memory.
        blocks = (flat[part] for part in blocks_of(len(flat) if array.dtype.kind == "f" else 0))
        if array.dtype.kind == "c" or not all(np.isfinite(block).all() for block in blocks):
            raise refuse(f"{what} {name} is not made of finite numbers")
    return dict(arrays)


def integers(
    arrays: Mapping[str, np.ndarray], name: str, what: str, *, count: int | None = None, least: int = 0, below: int
) -> np.ndarray:
    """A one-dimensional array of whole numbers, each from `least` to `below` - 1."""
    if name not in arrays:
        raise refuse(f"{what} has no array {name!r}")
    array = arrays[name]
    # NumPy cannot mix uint64 indices with signed ones.
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.dtype == np.uint64:
        raise refuse(f"{what}: {name} is not a one-dimensional array of whole numbers")
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
