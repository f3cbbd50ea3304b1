"""Maps external ids to dense numbers and back. The only place where a user's ids become row numbers.

Ids are one Arrow column, and numbers are found through sorted 64-bit hashes: about 25 bytes per id, where Python
strings and a dictionary take 150. The column may be a mapped file (`storage.mapped_arrays`), which processes share.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from capsid.errors import DataError, UnknownIdError, reason_of

if TYPE_CHECKING:
    import pyarrow as pa

# Rows that are hashed, or turned into Python texts, at a time.
BLOCK = 1 << 16
# Polynomial hash modulo 2**64. Equal hashes are compared as texts, so a collision costs time only.
FACTOR = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


class Vocabulary(Sequence[str]):
    """An ordered set of ids; number i stands for the i-th id."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._ids = _column(ids)
        for row in self.repeats()[:1]:
            raise DataError(f"id {self[row]!r} occurs twice", hint="ids must be unique")

    @classmethod
    def of_unique(cls, ids: pa.LargeStringArray) -> Vocabulary:
        """Ids that are known to be unique: nothing is read before it is needed."""
        self = cls.__new__(cls)
        self._ids = ids
        return self

    @property
    def column(self) -> pa.LargeStringArray:
        """All ids as an Arrow column."""
        return self._ids

    def extended(self, ids: Iterable[str]) -> Vocabulary:
        """These ids, then more, which must be new."""
        import pyarrow as pa

        more = _column(ids)
        for number in self.numbers(Vocabulary(more), missing="drop")[:1]:
            raise DataError(f"{self[number]!r} already has an id", hint="leave it out: known ids never change")
        return Vocabulary(pa.chunked_array([self._ids, more]))

    def part(self, start: int, stop: int) -> Vocabulary:
        """The ids `start` to `stop` - 1, not copied."""
        return Vocabulary.of_unique(self._ids.slice(start, max(stop - start, 0)))

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), BLOCK):
            yield from self._ids.slice(start, BLOCK).to_pylist()

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return tuple(self._ids.slice(start, max(stop - start, 0)).to_pylist())
            return tuple(self.ids(range(start, stop, step)))
        return self._ids[int(index)].as_py()

    def __contains__(self, id_: object) -> bool:
        return self._number(id_) >= 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and (self is other or self._ids.equals(other._ids))

    def __hash__(self) -> int:
        return hash((len(self), self[:2], self[-2:]))

    def number(self, id_: str) -> int:
        """The number of one id; an unknown id is an error that suggests similar ids."""
        number = self._number(id_)
        if number < 0:
            raise UnknownIdError(f"unknown id {id_!r:.100}", hint=self._near(id_))
        return number

    def numbers(self, ids: Iterable[str], *, missing: str = "raise") -> np.ndarray:
        """Numbers of many ids. For unknown ids, `missing` is "raise", "drop" or "negative" (-1)."""
        if isinstance(ids, Vocabulary):
            found = self._numbers_of(ids)
        else:
            ids = list(ids)
            found = np.array([self._number(i) for i in ids], dtype=np.int64)
        if missing == "raise":
            if len(found) and found.min() < 0:
                self.number(ids[int(np.argmax(found < 0))])
            return found
        return found[found >= 0] if missing == "drop" else found

    def ids(self, numbers: Iterable[int]) -> list[str]:
        rows = np.asarray(numbers if isinstance(numbers, np.ndarray) else list(numbers), dtype=np.int64)
        # Arrow refuses negative rows; as indices of a sequence they count from the end.
        return _taken(self._ids, np.where(rows < 0, rows + len(self), rows)).to_pylist()

    @cached_property
    def _index(self) -> tuple[np.ndarray, np.ndarray]:
        """Sorted hashes, and the number of the id that each belongs to."""
        hashes = text_hashes(self._ids)
        order = np.argsort(hashes, kind="stable")
        return hashes[order], order.astype(np.int32 if len(order) < 2**31 else np.int64)

    def _number(self, id_: Any) -> int:
        if not isinstance(id_, str):
            return -1
        hashes, numbers = self._index
        try:
            wanted = np.uint64(text_hash(id_.encode()))
        except UnicodeEncodeError:  # half of a surrogate pair, which no column holds
            return -1
        place = int(hashes.searchsorted(wanted))
        while place < len(hashes) and hashes[place] == wanted:
            if self._ids[int(numbers[place])].as_py() == id_:
                return int(numbers[place])
            place += 1
        return -1

    def _numbers_of(self, other: Vocabulary) -> np.ndarray:
        """Numbers of another vocabulary's ids, or -1, a block at a time."""
        import pyarrow.compute as pc

        hashes, numbers = self._index
        out = np.full(len(other), -1, dtype=np.int64)
        for start in range(0, len(other) if len(self) else 0, BLOCK):
            asked = other._ids.slice(start, BLOCK)
            wanted = text_hashes(asked)
            place = hashes.searchsorted(wanted).clip(max=len(hashes) - 1)
            rows = numbers[place].astype(np.int64)
            same = pc.equal(_taken(self._ids, rows), asked).to_numpy(zero_copy_only=False)
            out[start : start + len(asked)] = np.where(same, rows, -1)
            # The hash is there but not the text: another id with this hash may be the one.
            for row in np.flatnonzero(~same & (hashes[place] == wanted)):
                out[start + row] = self._number(asked[int(row)].as_py())
        return out

    def repeats(self) -> np.ndarray:
        """Rows whose id occurred in an earlier row, which only `of_unique` lets through."""
        hashes, numbers = self._index
        again = np.flatnonzero(hashes[1:] == hashes[:-1])
        # Few rows share a hash, unless ids occur twice.
        rows = np.unique(numbers[np.concatenate([again, again + 1])])
        seen: set[str] = set()
        return np.array([r for r, i in zip(rows, self.ids(rows)) if i in seen or seen.add(i)], dtype=np.int64)  # type: ignore[func-returns-value]

    def _near(self, id_: Any) -> str:
        """A few known ids that look like this one, else the first few."""
        # Comparing ids is slow, so only the first ids of a large catalogue are considered.
        close = difflib.get_close_matches(str(id_), self[:20_000], n=3, cutoff=0.6)
        if close:
            return f"did you mean {' or '.join(map(repr, close))}?"
        return f"known ids look like {', '.join(map(repr, self[:3]))}" if len(self) else "there are no ids"


def _column(ids: Iterable[str]) -> pa.LargeStringArray:
    """Ids as one Arrow column of texts."""
    import polars as pl
    import pyarrow as pa

    if isinstance(ids, Vocabulary):
        return ids.column
    try:
        if not hasattr(ids, "to_arrow") and not isinstance(ids, pa.Array | pa.ChunkedArray):
            # Not by pyarrow, which imports pandas to look at Python objects.
            ids = pl.Series(list(ids), dtype=pl.String)
        made = ids.to_arrow() if hasattr(ids, "to_arrow") else ids
        if isinstance(made, pa.ChunkedArray):
            made = made.combine_chunks()
        column: pa.LargeStringArray = made.cast(pa.large_string())  # type: ignore[union-attr]
    except (pa.ArrowException, TypeError, UnicodeEncodeError) as error:
        raise DataError(f"ids must be strings: {reason_of(error)}") from None
    if column.null_count:
        raise DataError(f"{column.null_count} ids are missing", hint="every row needs an id of its own")
    return column


def _taken(column: pa.LargeStringArray, rows: np.ndarray) -> pa.LargeStringArray:
    """Some rows of a column. The numbers do not become Arrow by pyarrow, which would import pandas."""
    import polars as pl

    return column.take(pl.Series(np.asarray(rows, dtype=np.int64)).to_arrow())


def text_hash(text: bytes) -> int:
    """The hash of one text; slow twin of `text_hashes`."""
    value = 0
    for byte in text:
        value = (value * FACTOR + byte + 1) & MASK
    return value


def text_hashes(ids: pa.LargeStringArray) -> np.ndarray:
    """The hash of every text. Shape: (ids,)."""
    out = np.zeros(len(ids), dtype=np.uint64)
    _, offsets_buffer, data_buffer = ids.buffers()
    if not len(ids) or data_buffer is None:
        return out
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64)[ids.offset : ids.offset + len(ids) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8)
    for start in range(0, len(ids), BLOCK):
        places = offsets[start : start + BLOCK + 1]
        out[start : start + BLOCK] = _block_hashes(data, places[:-1], np.diff(places))
    return out


def _block_hashes(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Hashes of texts in one buffer: byte by byte for all texts together, as long as any has one left."""
    factor, one = np.uint64(FACTOR), np.uint64(1)
    values = np.zeros(len(starts), dtype=np.uint64)
    shortest, longest = int(lengths.min()), int(lengths.max())
    for place in range(shortest):
        values = values * factor + (data[starts + place] + one)
    live = np.arange(len(starts))
    for place in range(shortest, longest):
        live = live[lengths[live] > place]
        values[live] = values[live] * factor + (data[starts[live] + place] + one)
    return values


def id_ranks(items: Vocabulary) -> np.ndarray:
    """The place of every item among the sorted ids: numbers by value if all ids are whole numbers, else texts."""
    ids = list(items)
    keys: Any = list(map(int, ids)) if all(i.isascii() and i.isdigit() and len(i) < 19 for i in ids) else ids
    ranks = np.empty(len(ids), dtype=np.int64)
    ranks[np.argsort(np.array(keys), kind="stable")] = np.arange(len(ids))
    return ranks
