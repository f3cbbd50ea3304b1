"""The item encoder protocol, and the checks that every encoder's vectors pass.

For every encoder, a row of zeros means "no evidence about this item". Knows no concrete encoder and no files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar, runtime_checkable

import numpy as np

from capsid.base.run_options import CheckpointFile
from capsid.base.storage.mapped_arrays import int64_blocks
from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.errors import ArtifactError, ConfigError, DataError, NotFittedError
from capsid.progress import Progress, silent
from capsid.settings import check_settings

T = TypeVar("T")
# Changes when the vectors of the same encoder and data change.
VERSION = 1


class ItemEncoder(Protocol):
    """Turns the items of a table into vectors. Fields are hyperparameters, learnt state ends in ``_``."""

    kind: ClassVar[str]

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Self:
        """Learn from the catalogue and its training histories. Long training resumes from `checkpoint` if it exists."""

    def transform(self, table: ItemTable, *, progress: Progress = silent) -> np.ndarray:
        """Finite float32 vectors in table order; a zero row means no evidence. Shape: (items, d)."""

    def state(self) -> dict[str, np.ndarray]:
        """Everything that `fit` learnt, as plain arrays."""

    def load_state(self, state: Mapping[str, np.ndarray]) -> Self:
        """Restore what `state` returned."""

    def cache_key(self, table: ItemTable, *, seed: int = 0) -> str:
        """A hash of everything that this encoder's vectors of this table depend on."""


def fresh(part: T) -> T:
    """An encoder with the same hyperparameters and nothing learnt."""
    return dataclasses.replace(part)  # type: ignore[type-var]


def fitted(value: T | None, owner: Any) -> T:
    """A learnt attribute; raises if the owner is not fitted."""
    if value is None:
        raise NotFittedError(f"{type(owner).__name__} is not fitted", hint="call fit first")
    return value


def require_items(table: ItemTable) -> None:
    """Refuse an empty catalogue."""
    if not len(table):
        raise DataError("the item table has no items", hint="check the dataset with `capsid data check`")


def l2_normalise(vectors_ND: np.ndarray) -> np.ndarray:
    """Scale rows to norm one; zero rows stay zero. Shape: (items, d)."""
    vectors_ND = np.asarray(vectors_ND)
    # Dividing by the largest entry first keeps the squares of tiny and huge rows from under- or overflowing.
    largest_N1 = np.abs(vectors_ND).max(axis=1, keepdims=True, initial=0.0)
    scaled_ND = vectors_ND / np.where(largest_N1 > 0, largest_N1, 1)
    norms_N1 = np.linalg.norm(scaled_ND, axis=1, keepdims=True)
    return (scaled_ND / np.where(norms_N1 > 0, norms_N1, 1)).astype(np.float32)


def has_evidence(vectors_ND: np.ndarray) -> np.ndarray:
    """Mask of the rows that are not all zeros. Shape: (items,)."""
    return np.any(vectors_ND != 0, axis=1)


def check_vectors(
    vectors_ND: np.ndarray, items: Sequence[str], *, dim: int | None = None, allow_zero: bool = False
) -> None:
    """Require a matrix of `dim` columns with one finite row per item, and no zero rows unless they are allowed."""
    if vectors_ND.ndim != 2 or not np.issubdtype(vectors_ND.dtype, np.number):
        raise DataError(
            f"vectors must be a matrix of numbers, got {vectors_ND.dtype} of shape {vectors_ND.shape}",
            hint="one row of numbers per item",
        )
    if len(vectors_ND) != len(items):
        raise DataError(f"{len(vectors_ND)} vectors for {len(items)} items", hint="one row per item, in item order")
    if vectors_ND.shape[1] == 0 or (dim is not None and vectors_ND.shape[1] != dim):
        raise DataError(
            f"vectors are {vectors_ND.shape[1]} wide, expected {'at least 1' if dim is None else dim}",
            hint="every vector needs the same number of columns",
        )
    broken_N, zero_N = np.empty(len(vectors_ND), dtype=bool), np.empty(len(vectors_ND), dtype=bool)
    # In blocks of 16 MB: the matrix may be a mapped file larger than memory.
    step = max(1, (1 << 22) // vectors_ND.shape[1])
    for start in range(0, len(vectors_ND), step):
        block = vectors_ND[start : start + step]
        broken_N[start : start + step] = ~np.isfinite(block).all(axis=1)
        zero_N[start : start + step] = ~has_evidence(block)
    refuse_rows(broken_N, items, "hold NaN or infinity", "repair or drop these rows")
    if not allow_zero:
        refuse_rows(zero_N, items, "are all zeros", "give these items text, attributes or vectors")


def vectors_of(table: ItemTable, block: str = "item", *, dim: int | None = None) -> np.ndarray:
    """A float32 copy of the items' vectors, after `check_vectors`. Shape: (items, d)."""
    vectors_ND = table.vectors(block)
    check_vectors(vectors_ND, table.items, dim=dim)
    return np.array(vectors_ND, dtype=np.float32)


def first_ids(rows: np.ndarray, items: Sequence[str], limit: int = 5) -> str:
    """The first few ids of a mask, for a message."""
    numbers = np.flatnonzero(rows)
    shown = ", ".join(repr(items[int(n)]) for n in numbers[:limit])
    return shown + (f" and {len(numbers) - limit} more" if len(numbers) > limit else "")


def pack_strings(strings: Iterable[str]) -> np.ndarray:
    """Strings as one array of bytes: a fixed-width unicode array would take the longest id's size for every item."""
    return np.frombuffer(json.dumps(list(strings), ensure_ascii=False).encode(), dtype=np.uint8)


def unpack_strings(packed: np.ndarray) -> list[str]:
    """Undo `pack_strings`."""
    try:
        return [str(s) for s in json.loads(packed.tobytes().decode())]
    except (UnicodeDecodeError, json.JSONDecodeError, TypeError) as error:
        raise ArtifactError(f"a list of names in an encoder's state could not be read: {error}") from None


def take(state: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """One array of a saved state."""
    if name not in state:
        raise ArtifactError(f"the encoder's saved state lacks {name!r}", hint="it was written by another version")
    return state[name]


def below(state: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin with `prefix`, with the prefix removed: the state of one part."""
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


@runtime_checkable
class TakesVectors(Protocol):
    """An encoder that can be given the vectors of new items in a file."""

    def with_vectors(self, path: str | Path) -> Self:
        """A fitted copy that also knows the vectors of this file."""


def with_vectors(encoder: Any, path: str | Path) -> Any:
    """A copy of a fitted encoder that also knows the vectors of a file; an error if it makes its vectors itself."""
    if not isinstance(encoder, TakesVectors):
        raise ConfigError(
            "the vectors of new items can only be given if the fit read its vectors from a file",
            hint="leave --vectors out: new items get theirs from their attributes",
        )
    return encoder.with_vectors(path)


class RemembersVectors:
    """Base of encoders with one stored vector per known item: checks settings and keeps the learnt state."""

    items_: Vocabulary | None
    vectors_: np.ndarray | None

    def __post_init__(self) -> None:
        check_settings(self)
        self.items_ = None
        self.vectors_ = None

    def state(self) -> dict[str, np.ndarray]:
        return {"items": pack_strings(fitted(self.items_, self)), "vectors": fitted(self.vectors_, self)}

    def load_state(self, state: Mapping[str, np.ndarray]) -> Self:
        self.items_ = Vocabulary(unpack_strings(take(state, "items")))
        self.vectors_ = take(state, "vectors")
        return self

    def remembered(self, items: Sequence[str]) -> np.ndarray:
        """Vectors by item id; zeros for unknown items. Vectors in the order of the items are not copied. Shape: (items,
        d)."""
        vectors_ND = fitted(self.vectors_, self)
        if items == self.items_:
            return vectors_ND
        numbers = fitted(self.items_, self).numbers(items, missing="negative")
        out_ND = vectors_ND[numbers]
        out_ND[numbers < 0] = 0.0
        return out_ND


def histories_hash(table: ItemTable) -> str:
    """A hash of the items and their training histories, for cache keys of encoders that read nothing else."""
    return content_hash(table.items, table.sequences.values, table.sequences.offsets)


def content_hash(*parts: Iterable[str] | np.ndarray) -> str:
    """A hash of arrays and lists of strings, for cache keys."""
    digest = hashlib.sha256(bytes([VERSION]))
    for part in parts:
        if isinstance(part, np.ndarray):
            # Widen integers: the same histories must hash the same whether a reader kept 32 or 64 bits.
            whole = np.issubdtype(part.dtype, np.integer)
            digest.update(f"{np.dtype(np.int64) if whole else part.dtype}{part.shape}".encode())
            for block in int64_blocks(part) if whole else [np.ascontiguousarray(part).tobytes()]:
                digest.update(block)
        else:
            digest.update(pack_strings(part).tobytes())
        digest.update(b"\0")
    return digest.hexdigest()[:32]


def refuse_rows(bad: np.ndarray, items: Sequence[str], what: str, hint: str) -> None:
    """An error that names the first items of a mask, if there are any."""
    if bad.any():
        raise DataError(f"the vectors of {int(bad.sum())} items {what}: {first_ids(bad, items)}", hint=hint)
