"""A trie of ids in four flat arrays, for constrained decoding over real items.

Nodes are numbered level by level in lexicographic order, so the children of node n are the nodes
`first_child[n] .. first_child[n + 1]` and no target array is needed (to sort once and let a node begin where a row
first differs from the one before is STATIC's idea: youtube/static-constraint-decoding). Every node covers a range
`low .. high` of the items in lexicographic order, so filters become differences of running counts. Accept states are
the leaves: ids are closed by an end token where another goes on (`SemanticIds.closed`). Knows no scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from capsid.errors import DataError
from capsid.ids.layout import PAD
from capsid.ids.order import ABSENT, Columns, lexicographic_order
from capsid.ragged import Ragged

ROOT = 0
_ARRAYS = ("first_child", "token", "low", "high", "items")


@dataclass(frozen=True, eq=False)
class Children:
    """Edges out of a batch of nodes: edge e goes from `nodes[parent[e]]` over `token[e]` to `node[e]`."""

    parent: np.ndarray
    token: np.ndarray
    node: np.ndarray


@dataclass(frozen=True, eq=False)
class Trie:
    """`items` are row numbers in lexicographic order of their ids; equal ids in order of priority."""

    first_child: np.ndarray
    token: np.ndarray
    low: np.ndarray
    high: np.ndarray
    items: np.ndarray

    @classmethod
    def build(cls, closed: Ragged, priority: np.ndarray | None = None) -> Trie:
        """From prefix-free token rows (row i is item i). `priority` orders items inside a bucket, small first."""
        if len(closed) and closed.lengths.min() < 1:
            raise DataError("an item has no tokens")
        return cls._from_sorted(closed, lexicographic_order(closed, priority))

    @classmethod
    def _from_sorted(cls, closed: Ragged, order: np.ndarray) -> Trie:
        n = len(closed)
        index = np.int32 if n < 2**30 else np.int64
        order = order.astype(index, copy=False)
        wide = len(closed.values) and int(closed.values.max()) >= 2**16
        small = np.int32 if wide else np.uint16
        tokens, lows, highs, starts = [np.zeros(1, small)], [np.zeros(1, index)], [np.full(1, n, index)], []
        changed = np.zeros(n, dtype=bool)
        if n:
            changed[0] = True
        base = 1
        columns = Columns(closed)
        for depth in range(columns.width):
            values = columns[depth][order]
            changed[1:] |= values[1:] != values[:-1]
            low = np.flatnonzero(changed).astype(index)
            # A node ends where the next group begins, also if that group's rows have already ended.
            high = np.append(low[1:], index(n))
            here = values[low] != ABSENT
            if not here.all():
                low, high = low[here], high[here]
            starts.append(base + np.searchsorted(low, lows[-1]).astype(index))
            tokens.append(values[low].astype(small))
            lows.append(low)
            highs.append(high)
            base += len(low)
        starts.append(np.full(len(lows[-1]) + 1, base, dtype=index))
        trie = cls(_joined(starts), _joined(tokens), _joined(lows), _joined(highs), order)
        ends = trie.first_child[1:] == trie.first_child[:-1]
        if n and int((trie.high - trie.low).sum(where=ends, dtype=np.int64)) != n:
            raise DataError("an id is a prefix of another", hint="build the trie from SemanticIds.closed")
        return trie

    def __len__(self) -> int:
        return len(self.items)

    @property
    def nodes(self) -> int:
        """Number of nodes, the root included."""
        return len(self.token)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        return sum(getattr(self, name).nbytes for name in _ARRAYS)

    @cached_property
    def leaves(self) -> np.ndarray:
        """Leaf nodes in lexicographic order of their ids."""
        leaves = np.flatnonzero(self.first_child[1:] == self.first_child[:-1])
        starts = self.low[leaves]
        # Where all ids are equally long the leaves are one level, already in order.
        return leaves if (starts[1:] > starts[:-1]).all() else leaves[np.argsort(starts)]

    @cached_property
    def positions(self) -> np.ndarray:
        """Place of every item in lexicographic order (the inverse of `items`)."""
        out = np.empty(len(self.items), dtype=self.items.dtype)
        out[self.items] = np.arange(len(self.items), dtype=self.items.dtype)
        return out

    def is_leaf(self, nodes: np.ndarray) -> np.ndarray:
        """Where an id ends."""
        return self.first_child[nodes + 1] == self.first_child[nodes]

    def leaf_of(self, items: np.ndarray) -> np.ndarray:
        """The leaf at which each item's id ends."""
        places = np.searchsorted(self.low[self.leaves], self.positions[items], side="right") - 1
        return self.leaves[places]

    def bucket(self, leaf: int) -> np.ndarray:
        """Row numbers of the items that share this leaf's id, best first."""
        return self.items[self.low[leaf] : self.high[leaf]]

    def children(self, nodes: np.ndarray) -> Children:
        """All edges out of a batch of nodes, in trie order for each node."""
        starts = self.first_child[nodes].astype(np.int64)
        counts = self.first_child[nodes + 1] - starts
        edges = Ragged.ranges(starts, counts)
        return Children(edges.row_numbers, self.token[edges.values].astype(np.int64), edges.values)

    def walk(self, nodes: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """The child of every node over its token, or -1. Binary search, all at once."""
        low = self.first_child[nodes].astype(np.int64)
        high = self.first_child[nodes + 1].astype(np.int64)
        end = high.copy()
        while (low < high).any():
            middle = (low + high) // 2
            right = (low < high) & (self.token[np.minimum(middle, self.nodes - 1)] < tokens)
            low, high = np.where(right, middle + 1, low), np.where(right, high, np.where(low < high, middle, high))
        found = (low < end) & (self.token[np.minimum(low, self.nodes - 1)] == tokens)
        return np.where(found, low, -1)

    def path(self, node: int) -> list[int]:
        """Tokens from the root to a node."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(int(self.token[node]))
            node = int(np.searchsorted(self.first_child, node, side="right")) - 1
        return tokens[::-1]

    def rows(self) -> Ragged:
        """The closed token rows again, row i for item i."""
        depth, level, ids = 0, np.zeros(1, dtype=np.int64), []
        while len(level):
            edges = self.children(level)
            if not len(edges.node):
                break
            ids.append((edges.node, self.token[edges.node]))
            level, depth = edges.node, depth + 1
        matrix = np.full((len(self.items), depth), PAD, dtype=np.int32)
        lengths = np.zeros(len(self.items), dtype=np.int64)
        for d, (nodes, tokens) in enumerate(ids):
            sizes = (self.high[nodes] - self.low[nodes]).astype(np.int64)
            rows = self.items[Ragged.ranges(self.low[nodes], sizes).values]
            matrix[rows, d] = np.repeat(tokens, sizes)
            lengths[rows] = d + 1
        return Ragged.from_dense(matrix, lengths)

    def extend(self, closed: Ragged, priority: np.ndarray | None = None) -> Trie:
        """A trie of all rows of `closed`, whose first rows are this trie's items with unchanged ids.

        The sorted order is merged, not sorted again. Where an id gained or lost its end token it is built anew.
        """
        old = len(self.items)
        same = self.rows() == closed.take(np.arange(old))
        if priority is None and not same:
            # Places in the old order stand for the priorities it was built with; new items follow.
            priority = np.concatenate([self.positions, np.arange(old, len(closed))])
        if priority is not None:
            return Trie.build(closed, priority)
        new = closed.take(np.arange(old, len(closed)))
        return Trie._from_sorted(closed, _merge(closed, self.items, old + lexicographic_order(new)))

    def save(self, folder: Path) -> None:
        """One npy file an array, so that each can be mapped into memory."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name), allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, *, memory_map: bool = False) -> Trie:
        """Read what `save` wrote; mapped arrays are paged in as the search touches them."""
        files = [folder / f"{name}.npy" for name in _ARRAYS]
        return cls(*(np.load(f, mmap_mode="r" if memory_map else None, allow_pickle=False) for f in files))


def _joined(levels: list[np.ndarray]) -> np.ndarray:
    """The levels end to end; the list is emptied, because at the size of a catalogue both would not fit."""
    out = np.concatenate(levels)
    levels.clear()
    return out


def _merge(rows: Ragged, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Merge two sorted lists of row numbers; of equal rows the left ones come first."""
    low = np.zeros(len(right), dtype=np.int64)
    high = np.full(len(right), len(left), dtype=np.int64)
    if not len(right):
        return left
    columns = Columns(rows)
    width = columns.width
    dense_right = np.stack([columns[d][right] for d in range(width)], axis=1)
    while (low < high).any():
        middle = (low + high) // 2
        probe = left[np.minimum(middle, len(left) - 1)]
        lengths = rows.lengths[probe]
        greater = np.zeros(len(right), dtype=bool)
        decided = np.zeros(len(right), dtype=bool)
        for d in range(width):
            there = lengths > d
            value = np.full(len(right), ABSENT, dtype=np.int64)
            value[there] = rows.values[rows.offsets[:-1][probe[there]] + d]
            greater |= ~decided & (value > dense_right[:, d])
            decided |= value != dense_right[:, d]
        active = low < high
        low = np.where(active & ~greater, middle + 1, low)
        high = np.where(active & greater, middle, high)
    return np.insert(left, low, right)
