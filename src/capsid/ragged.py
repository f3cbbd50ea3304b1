"""Rows of unequal length as two arrays: the concatenated values, and the offset where each row begins.

All index arithmetic on such rows is here, so that no caller computes offsets. Knows no items and no tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from capsid.base.storage.mapped_arrays import BLOCK, in_file, mapped_scratch


def offsets_of(lengths: np.ndarray | Sequence[int]) -> np.ndarray:
    """Where rows of these lengths begin when concatenated; the last entry is the end of the last row."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _runs(starts: np.ndarray | int, lengths: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Runs of numbers that count up from `starts[i]`, one after the other."""
    # A running index over all rows equals `offsets[i]` at the start of row i, where `starts[i]` is wanted.
    return np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])


def _row_parts(offsets: np.ndarray) -> Iterator[slice]:
    """Slices of rows that begin within BLOCK values."""
    ends = np.flatnonzero(np.diff(offsets[:-1] // BLOCK)) + 1
    bounds = [0, *ends.tolist(), len(offsets) - 1]
    return (slice(start, stop) for start, stop in itertools.pairwise(bounds))


@dataclass(frozen=True, eq=False)
class Ragged:
    """`values[offsets[i]:offsets[i + 1]]` is row i."""

    values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[int] | np.ndarray], dtype: type = np.int32) -> Ragged:
        """From any rows of integers."""
        arrays: list[np.ndarray] = [np.asarray(r, dtype=dtype) for r in rows]
        values = np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)
        return cls(values.astype(dtype, copy=False), offsets_of([len(a) for a in arrays]))

    @classmethod
    def from_lengths(cls, values: np.ndarray, lengths: np.ndarray) -> Ragged:
        """The values cut into rows of these lengths, which must add up to the number of values."""
        return cls(values, offsets_of(lengths))

    @classmethod
    def from_dense(cls, matrix_ND: np.ndarray, lengths: np.ndarray | None = None) -> Ragged:
        """From a matrix, each row truncated to its length."""
        n, width = matrix_ND.shape
        if lengths is None:
            lengths = np.full(n, width, dtype=np.int64)
        return cls.from_lengths(matrix_ND[np.arange(width)[None, :] < lengths[:, None]], lengths)

    @classmethod
    def ranges(cls, starts: np.ndarray | int, lengths: np.ndarray) -> Ragged:
        """Row i counts up from `starts[i]` (or from one start for all rows), `lengths[i]` numbers long."""
        offsets = offsets_of(lengths)
        return cls(_runs(starts, lengths, offsets), offsets)

    @classmethod
    def grouped(cls, values: np.ndarray, rows: np.ndarray, count: int) -> Ragged:
        """Each value in the row that `rows` names, `count` rows in all; inside a row the values keep their order."""
        # The stable sort brings the values of a row together without reordering them.
        return cls.from_lengths(values[np.argsort(rows, kind="stable")], np.bincount(rows, minlength=count))

    @classmethod
    def join(cls, parts: Sequence[Ragged]) -> Ragged:
        """All rows of all parts, in order; values take the dtype of the first part."""
        first = parts[0].values.dtype
        values = np.concatenate([p.values.astype(first, copy=False) for p in parts])
        return cls.from_lengths(values, np.concatenate([p.lengths for p in parts]))

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

    def lengths_of(self, rows: np.ndarray) -> np.ndarray:
        """Lengths of the given rows. The cost does not grow with the rows that are not asked for."""
        return self.offsets[rows + 1] - self.offsets[rows]

    @property
    def row_numbers(self) -> np.ndarray:
        """The row of every value, so that something known per row can be looked up per value."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def positions(self) -> np.ndarray:
        """The position of every value in its row, from 0. For codes this is their depth, for histories their time."""
        return np.arange(len(self.values)) - np.repeat(self.offsets[:-1], self.lengths)

    def dense(self, fill: int = -1) -> np.ndarray:
        """A matrix as wide as the longest row; shorter rows are padded at the end with `fill`."""
        lengths = self.lengths
        width = int(lengths.max()) if len(lengths) else 0
        out = np.full((len(self), width), fill, dtype=self.values.dtype)
        out[np.arange(width)[None, :] < lengths[:, None]] = self.values
        return out

    def slices(self, starts: np.ndarray | int, lengths: np.ndarray, rows: np.ndarray | None = None) -> Ragged:
        """From every row, or from each of the given `rows`, the `lengths[i]` values that begin at position `starts[i]`.

        A slice must lie inside its row; this is not checked.
        """
        begins = starts + (self.offsets[:-1] if rows is None else self.offsets[rows])
        offsets = offsets_of(lengths)
        if offsets[-1] <= BLOCK:
            return Ragged(self.values[_runs(begins, lengths, offsets)], offsets)
        # Some rows at a time, because an index of all values is larger than the values.
        parts = (self.values[Ragged.ranges(begins[p], lengths[p]).values] for p in _row_parts(offsets))
        if in_file(self.values):
            return Ragged(mapped_scratch(parts, self.values.dtype), offsets)
        values = np.empty((offsets[-1], *self.values.shape[1:]), dtype=self.values.dtype)
        for part, found in zip(_row_parts(offsets), parts):
            values[offsets[part.start] : offsets[part.stop]] = found
        return Ragged(values, offsets)

    def parts(self) -> Iterator[Ragged]:
        """Neighbouring rows, some at a time; one part if there are few values."""
        for part in _row_parts(self.offsets):
            begin, end = self.offsets[part.start], self.offsets[part.stop]
            yield Ragged(self.values[begin:end], self.offsets[part.start : part.stop + 1] - begin)

    def take(self, rows: np.ndarray) -> Ragged:
        """The given rows, in the given order."""
        rows = np.asarray(rows, dtype=np.int64)
        return self.slices(0, self.lengths_of(rows), rows)

    def first(self, most: int) -> Ragged:
        """At most the first `most` values of every row."""
        return self.slices(0, np.minimum(self.lengths, most))

    def last(self, most: int) -> Ragged:
        """At most the last `most` values of every row."""
        lengths = self.lengths
        kept = np.minimum(lengths, most)
        return self.slices(lengths - kept, kept)

    def keep(self, chosen: np.ndarray) -> Ragged:
        """Only the values where the mask is true. All rows remain, possibly shorter or empty."""
        # Each row now begins after the number of values kept before it.
        return Ragged(self.values[chosen], offsets_of(chosen)[self.offsets])

    def repeat(self, counts: np.ndarray) -> Ragged:
        """Every value repeated `counts` times in its row."""
        return Ragged(np.repeat(self.values, counts), offsets_of(counts)[self.offsets])

    def push(self, values: np.ndarray | int, chosen: np.ndarray | None = None) -> Ragged:
        """One more value at the end of every row, or of the rows where the mask `chosen` is true."""
        if chosen is None:
            chosen = np.ones(len(self), dtype=bool)
        # Each new value shifts all later rows by one.
        return Ragged(np.insert(self.values, self.offsets[1:][chosen], values), self.offsets + offsets_of(chosen))

    def sums(self, values: np.ndarray | None = None) -> np.ndarray:
        """The sum of every row. `values` replaces this one's values: same number, along the first axis."""
        values = self.values if values is None else values
        # reduceat gives an empty row the value after it, so only non-empty rows are summed.
        full = np.flatnonzero(self.lengths)
        if len(full) == len(self) > 0:
            return np.add.reduceat(values, self.offsets[:-1], axis=0)
        out = np.zeros((len(self), *values.shape[1:]), dtype=np.add.reduce(values[:0], axis=0).dtype)
        if len(full):
            out[full] = np.add.reduceat(values, self.offsets[:-1][full], axis=0)
        return out

    def beside(self, other: Ragged) -> Ragged:
        """Row i of this one followed by row i of the other."""
        out = offsets_of(self.lengths + other.lengths)
        values = np.empty(out[-1], dtype=self.values.dtype)
        # A value moves by as much as the begin of its row does; the other's rows begin where this one's end.
        values[np.repeat(out[:-1] - self.offsets[:-1], self.lengths) + np.arange(len(self.values))] = self.values
        begins = out[:-1] + self.lengths - other.offsets[:-1]
        values[np.repeat(begins, other.lengths) + np.arange(len(other.values))] = other.values
        return Ragged(values, out)

    def append(self, other: Ragged) -> Ragged:
        """This one's rows, then the other's."""
        return Ragged.join([self, other])
