"""Lexicographic order of ragged rows, a shorter row before its extensions. The ground of trie and collisions."""

from __future__ import annotations

import numpy as np

from capsid.ids.layout import END
from capsid.ragged import Ragged

ABSENT = -1


def column(rows: Ragged, depth: int) -> np.ndarray:
    """The value of every row at `depth`, ABSENT where the row is shorter."""
    lengths = rows.lengths
    if len(lengths) and lengths.min() > depth:
        return rows.values[rows.offsets[:-1] + depth].astype(np.int32, copy=False)
    out = np.full(len(rows), ABSENT, dtype=np.int32)
    there = lengths > depth
    out[there] = rows.values[rows.offsets[:-1][there] + depth]
    return out


def lexicographic_order(rows: Ragged, priority: np.ndarray | None = None) -> np.ndarray:
    """Row numbers in lexicographic order; equal rows by `priority` (small first), then by row number."""
    width = int(rows.lengths.max()) if len(rows) else 0
    keys = _packed_keys(rows, width)
    if keys is None:
        order = np.lexsort([column(rows, d) for d in reversed(range(width))])
        return _break_ties(order, _same_as_previous(rows, order), priority)
    order = np.argsort(keys)
    keys = keys[order]
    same = np.zeros(len(order), dtype=bool)
    np.equal(keys[1:], keys[:-1], out=same[1:])
    return _break_ties(order, same, priority)


def group_numbers(rows: Ragged) -> np.ndarray:
    """A number a row, equal for equal rows; groups are numbered in lexicographic order."""
    order = lexicographic_order(rows)
    groups = np.empty(len(rows), dtype=np.int64)
    groups[order] = np.cumsum(~_same_as_previous(rows, order)) - 1
    return groups


def proper_prefixes(rows: Ragged) -> np.ndarray:
    """True for every row that another row extends."""
    order = lexicographic_order(rows)
    lengths = rows.lengths
    same_so_far = np.ones(max(len(order) - 1, 0), dtype=bool)
    for depth in range(int(lengths.max()) if len(rows) else 0):
        values = column(rows, depth)[order]
        same_so_far &= (values[1:] == values[:-1]) | (values[:-1] == ABSENT)
    extended = np.zeros(len(rows), dtype=bool)
    if len(order) > 1:
        # In sorted order the last of several equal rows stands before the first extension.
        follows = same_so_far & (lengths[order[1:]] > lengths[order[:-1]])
        extended[order[:-1][follows]] = True
    groups = group_numbers(rows)
    return np.isin(groups, groups[extended])


def _packed_keys(rows: Ragged, width: int) -> np.ndarray | None:
    """One unsigned 64-bit key a row whose order is the rows' order, or None where 64 bits do not suffice."""
    keys = np.zeros(len(rows), dtype=np.uint64)
    used = 0
    for depth in range(width):
        values = column(rows, depth)
        plain = values[values > END]
        low = int(plain.min()) if len(plain) else 0
        # absent 0, end-of-item 1, then the codes of this depth counted from their smallest
        digits = np.where(values > END, values - low + 3, values + 1).astype(np.uint64)
        bits = int(digits.max()).bit_length() if len(digits) else 0
        used += bits
        if used > 64:
            return None
        keys <<= np.uint64(bits)
        keys |= digits
    return keys


def _same_as_previous(rows: Ragged, order: np.ndarray) -> np.ndarray:
    same = np.zeros(len(order), dtype=bool)
    same[1:] = True
    for depth in range(int(rows.lengths.max()) if len(rows) else 0):
        values = column(rows, depth)[order]
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
