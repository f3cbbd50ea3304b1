"""Rows of unequal length as two arrays: all values in a row, and where each row begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Ragged:
    """`values[offsets[i]:offsets[i + 1]]` is row i."""

    values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[int] | np.ndarray], dtype: type = np.int32) -> Ragged:
        """From any rows of integers."""
        arrays: list[np.ndarray] = [np.asarray(r, dtype=dtype) for r in rows]
        offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
        np.cumsum([len(a) for a in arrays], out=offsets[1:])
        values = np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)
        return cls(values.astype(dtype, copy=False), offsets)

    @classmethod
    def from_dense(cls, matrix_ND: np.ndarray, lengths: np.ndarray | None = None) -> Ragged:
        """From a matrix, each row cut to its length."""
        n, width = matrix_ND.shape
        if lengths is None:
            lengths = np.full(n, width, dtype=np.int64)
        offsets = np.zeros(n + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(matrix_ND[np.arange(width)[None, :] < lengths[:, None]], offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        row = range(len(self))[row]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Ragged)
            and np.array_equal(self.values, other.values)
            and np.array_equal(self.offsets, other.offsets)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def lengths(self) -> np.ndarray:
        """Length of every row."""
        return np.diff(self.offsets)

    def dense(self, fill: int = -1) -> np.ndarray:
        """A matrix as wide as the longest row, short rows filled at the end."""
        lengths = self.lengths
        width = int(lengths.max()) if len(lengths) else 0
        out = np.full((len(self), width), fill, dtype=self.values.dtype)
        out[np.arange(width)[None, :] < lengths[:, None]] = self.values
        return out

    def take(self, rows: np.ndarray) -> Ragged:
        """The given rows, in the given order."""
        rows = np.asarray(rows, dtype=np.int64)
        lengths = self.lengths[rows]
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        index = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Ragged(self.values[index], offsets)

    @classmethod
    def join(cls, parts: Sequence[Ragged]) -> Ragged:
        """The rows of the first, then those of the next, and so on; values have the type of the first."""
        first = parts[0].values.dtype
        values = np.concatenate([p.values.astype(first, copy=False) for p in parts])
        offsets = np.zeros(1 + sum(map(len, parts)), dtype=np.int64)
        np.cumsum(np.concatenate([p.lengths for p in parts]), out=offsets[1:])
        return cls(values, offsets)

    def append(self, other: Ragged) -> Ragged:
        """This one's rows, then the other's."""
        return Ragged.join([self, other])
