"""Lexicographic order of ragged rows, a shorter row before its extensions; and prefixes that several items share.

Shared prefixes are counted once, at fit, so an item's length depends on its own codes only, and later items never
change old ids. Knows no tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from capsid.base.randomness import STEP, mixed
from capsid.ids.layout import ABSENT, END
from capsid.ragged import Ragged


class Columns:
    """The values of rows, depth by depth. Lengths are checked once, and rows of equal length are not copied."""

    def __init__(self, rows: Ragged) -> None:
        lengths = rows.lengths
        self.width = int(lengths.max()) if len(rows) else 0
        self._rows = rows
        self._lengths = lengths
        self._matrix: np.ndarray | None = None
        if len(rows) and lengths.min() == self.width and rows.offsets[0] == 0:
            self._matrix = rows.values.reshape(len(rows), self.width)
            self._lengths = np.zeros(0, dtype=np.int64)

    def __getitem__(self, depth: int) -> np.ndarray:
        """The value of every row at `depth`, ABSENT where the row is shorter. May be a view: do not write to it."""
        if self._matrix is not None and depth < self.width:
            return self._matrix[:, depth].astype(np.int32, copy=False)
        out = np.full(len(self._rows), ABSENT, dtype=np.int32)
        there = np.flatnonzero(self._lengths > depth)
        out[there] = self._rows.values[self._rows.offsets[there] + depth]
        return out


def column(rows: Ragged, depth: int) -> np.ndarray:
    """One of the `Columns`."""
    return Columns(rows)[depth]


def lexicographic_order(rows: Ragged, priority: np.ndarray | None = None) -> np.ndarray:
    """Row numbers in lexicographic order; equal rows by `priority` (small first), then by row number."""
    columns = Columns(rows)
    keys = _packed_keys(rows, columns.width)
    if keys is None:
        order = np.lexsort([columns[d] for d in reversed(range(columns.width))])
        return _break_ties(order, _same_as_previous(rows, order), priority)
    order = _sort(keys)
    same = np.zeros(len(order), dtype=bool)
    np.equal(keys[1:], keys[:-1], out=same[1:])
    return _break_ties(order, same, priority)


def group_numbers(rows: Ragged) -> np.ndarray:
    """One group number per row, equal for equal rows, in lexicographic order."""
    order = lexicographic_order(rows)
    groups = np.empty(len(rows), dtype=np.int64)
    groups[order] = np.cumsum(~_same_as_previous(rows, order)) - 1
    return groups


def proper_prefixes(rows: Ragged) -> np.ndarray:
    """True for every row that another row extends."""
    lengths = rows.lengths
    if not len(rows) or lengths.min() == lengths.max():
        return np.zeros(len(rows), dtype=bool)
    order = lexicographic_order(rows)
    same_so_far = np.ones(len(order) - 1, dtype=bool)
    columns = Columns(rows)
    for depth in range(columns.width):
        values = columns[depth][order]
        same_so_far &= (values[1:] == values[:-1]) | (values[:-1] == ABSENT)
    extended = np.zeros(len(rows), dtype=bool)
    # In sorted order the extensions of a row follow the last of its equals.
    follows = same_so_far & (lengths[order[1:]] > lengths[order[:-1]])
    extended[order[:-1][follows]] = True
    groups = group_numbers(rows)
    return np.isin(groups, groups[extended])


def _packed_keys(rows: Ragged, width: int) -> np.ndarray | None:
    """One unsigned 64-bit key per row that sorts like the rows, or None where 64 bits do not suffice."""
    keys = np.zeros(len(rows), dtype=np.uint64)
    used = 0
    columns = Columns(rows)
    for depth in range(width):
        values = columns[depth]
        digits = values - values.min()
        if int(values.min()) <= END:
            plain = values[values > END]
            low = int(plain.min()) if len(plain) else 0
            # absent 0, padding 1, end-of-item 2, then the codes of this depth counted from their smallest
            digits = np.where(values > END, values - low + 3, values + 1)
        bits = int(digits.max()).bit_length()
        used += bits
        if used > 64:
            return None
        keys <<= np.uint64(bits)
        keys |= digits.astype(np.uint64)
    return keys


def _sort(keys: np.ndarray) -> np.ndarray:
    """Sort keys in place and return where each came from."""
    bits = np.uint64(len(keys).bit_length())
    if not len(keys) or int(keys.max()).bit_length() + int(bits) > 64:
        order = np.argsort(keys)
        keys[:] = keys[order]
        return order
    # With the row number in the remaining low bits a plain in-place sort suffices, which is far faster than argsort.
    keys <<= bits
    keys |= np.arange(len(keys), dtype=np.uint64)
    keys.sort()
    order = (keys & ((np.uint64(1) << bits) - np.uint64(1))).view(np.int64)
    keys >>= bits
    return order


def _same_as_previous(rows: Ragged, order: np.ndarray) -> np.ndarray:
    same = np.zeros(len(order), dtype=bool)
    same[1:] = True
    columns = Columns(rows)
    for depth in range(columns.width):
        values = columns[depth][order]
        same[1:] &= values[1:] == values[:-1]
    return same


def _break_ties(order: np.ndarray, same: np.ndarray, priority: np.ndarray | None) -> np.ndarray:
    """Sort the rows inside every group of equal rows; only those rows are touched."""
    tied = same.copy()
    tied[:-1] |= same[1:]
    places = np.flatnonzero(tied)
    if len(places):
        rows = order[places]
        group = np.cumsum(~same)[places]
        first = rows if priority is None else priority[rows]
        order[places] = rows[np.lexsort([rows, first, group])]
    return order


@dataclass(frozen=True, eq=False)
class SharedPrefixes:
    """Prefixes shared by more than `max_sharing` codes (or items) of the fitted catalogue, as sorted keys by depth."""

    sizes: tuple[int, ...]
    keys: tuple[np.ndarray, ...]

    @classmethod
    def none(cls, sizes: Sequence[int]) -> SharedPrefixes:
        """No prefix counts as shared."""
        return cls(tuple(sizes), tuple(np.zeros(0, dtype=np.uint64) for _ in sizes))

    @classmethod
    def count(
        cls, codes_ND: np.ndarray, sizes: Sequence[int], max_sharing: int, of: Literal["codes", "items"] = "codes"
    ) -> SharedPrefixes:
        """Count the prefixes of a catalogue's full codes. `of="codes"` counts equal codes once, since no length
        separates them; `of="items"` counts every item."""
        if max_sharing <= 0:
            return cls.none(sizes)
        keys_ND = prefix_keys(codes_ND)
        if of == "codes":
            _, first = np.unique(keys_ND[:, -1], return_index=True)
            keys_ND = keys_ND[first]
        shared = []
        for depth in range(len(sizes)):
            keys, counts = np.unique(keys_ND[:, depth], return_counts=True)
            shared.append(keys[counts > max_sharing])
        return cls(tuple(sizes), tuple(shared))

    def mask(self, codes_ND: np.ndarray) -> np.ndarray:
        """Where a prefix is shared by more than `max_sharing` codes. Shape: (items, depths)."""
        keys_ND = prefix_keys(codes_ND)
        return np.stack([self.at(depth, keys_ND[:, depth]) for depth in range(len(self.keys))], 1)

    def at(self, depth: int, keys_N: np.ndarray) -> np.ndarray:
        """`mask` for one depth, from the keys of the prefixes that end there. Shape: (items,)."""
        known = self.keys[depth]
        if not len(known):
            return np.zeros(len(keys_N), dtype=bool)
        return known[np.searchsorted(known, keys_N).clip(max=len(known) - 1)] == keys_N


def prefix_keys(codes_ND: np.ndarray) -> np.ndarray:
    """One key for each prefix of each row. Shape: (items, depths). Keys are 64-bit hashes, which allow any number of
    depths and codes: among a hundred million prefixes, the chance of any collision is 0.0003."""
    out = np.empty(codes_ND.shape, dtype=np.uint64)
    key_N = no_keys(len(codes_ND))
    for depth in range(codes_ND.shape[1]):
        key_N = longer_keys(key_N, codes_ND[:, depth])
        out[:, depth] = key_N
    return out


def no_keys(rows: int) -> np.ndarray:
    """Keys of empty prefixes. Shape: (rows,)."""
    return np.zeros(rows, dtype=np.uint64)


def longer_keys(keys_N: np.ndarray, codes_N: np.ndarray) -> np.ndarray:
    """Keys of the prefixes that are one code longer. Shape: (items,)."""
    return mixed((keys_N + codes_N.astype(np.uint64) + np.uint64(1)) * STEP)


def unshared_lengths(codes_ND: np.ndarray, shared: SharedPrefixes, shortest: int) -> np.ndarray:
    """Lengths of ids that end at the first prefix that few enough share, but not before `shortest`. Shape: (items,)."""
    may_ND = ~shared.mask(codes_ND) & (np.arange(codes_ND.shape[1]) >= shortest - 1)
    return np.where(may_ND.any(1), may_ND.argmax(1) + 1, codes_ND.shape[1])
