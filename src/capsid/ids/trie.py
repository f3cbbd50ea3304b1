"""A trie of ids in four flat arrays, for constrained decoding over real items.

Nodes are numbered level by level in lexicographic order, so the children of node n are the nodes
`first_child[n] .. first_child[n + 1]` and no target array is needed (sorting once and starting a node where a row
first differs from the previous one follows STATIC: youtube/static-constraint-decoding). Every node covers a range of
slots `low .. high` (a slot is an item's index in lexicographic order), so filters become differences of running counts.
Ids end at leaves: an id that is a prefix of another has an end token (`SemanticIds.prefix_free`). Knows no scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np

from capsid.base.storage import untrusted
from capsid.base.storage.arrays import load_array
from capsid.errors import DataError
from capsid.ids.layout import ABSENT, END
from capsid.ids.order import Columns, lexicographic_order
from capsid.ragged import Ragged

ROOT = 0
# A token's probability is normalised over all tokens, or over the children of its node.
Over = Literal["vocabulary", "children"]
_ARRAYS = ("first_child", "token", "low", "high", "items")
# Stored slots have this name.
_SLOTS_FILE = "positions"


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
    def build(cls, rows: Ragged, priority: np.ndarray | None = None) -> Trie:
        """From prefix-free token rows (row i is item i). `priority` orders items inside a bucket, small first."""
        if len(rows) and rows.lengths.min() < 1:
            raise DataError("an item has no tokens")
        return cls._from_sorted(rows, lexicographic_order(rows, priority))

    @classmethod
    def _from_sorted(cls, rows: Ragged, order: np.ndarray) -> Trie:
        n = len(rows)
        index = np.int32 if n < 2**30 else np.int64
        order = order.astype(index, copy=False)
        wide = len(rows.values) and int(rows.values.max()) >= 2**16
        small = np.int32 if wide else np.uint16
        tokens, lows, highs, starts = [np.zeros(1, small)], [np.zeros(1, index)], [np.full(1, n, index)], []
        changed = np.zeros(n, dtype=bool)
        if n:
            changed[0] = True
        base = 1
        columns = Columns(rows)
        for depth in range(columns.width):
            values = columns[depth][order]
            changed[1:] |= values[1:] != values[:-1]
            low = np.flatnonzero(changed).astype(index)
            # A node ends where the next group begins, even if the rows of that group have no token at this depth.
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
        return cls(_joined(starts), _joined(tokens), _joined(lows), _joined(highs), order)._checked()

    def _checked(self) -> Trie:
        """Every item must be below a leaf; that fails if an id is a prefix of another."""
        ends = self.first_child[1:] == self.first_child[:-1]
        if len(self) and int((self.high - self.low).sum(where=ends, dtype=np.int64)) != len(self):
            raise DataError("an id is a prefix of another", hint="build the trie from SemanticIds.prefix_free")
        return self

    def __len__(self) -> int:
        return len(self.items)

    @property
    def nodes(self) -> int:
        """Number of nodes, the root included."""
        return len(self.token)

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in _ARRAYS)

    @cached_property
    def leaves(self) -> np.ndarray:
        """Leaf nodes in lexicographic order of their ids."""
        leaves = np.flatnonzero(self.first_child[1:] == self.first_child[:-1])
        starts = self.low[leaves]
        # If all ids have the same length, the leaves are one level and already in order.
        return leaves if (starts[1:] > starts[:-1]).all() else leaves[np.argsort(starts)]

    @cached_property
    def slots(self) -> np.ndarray:
        """Each item's index in trie order: the inverse of `items`. It is stored so that it can be memory-mapped."""
        out = np.empty(len(self.items), dtype=self.items.dtype)
        out[self.items] = np.arange(len(self.items), dtype=self.items.dtype)
        return out

    def is_leaf(self, nodes: np.ndarray) -> np.ndarray:
        """Where an id ends."""
        return self.first_child[nodes + 1] == self.first_child[nodes]

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Where the nodes of each depth begin, the root's first; the last entry is the number of nodes."""
        starts = [ROOT]
        while starts[-1] < self.nodes:
            # The children of a level's first node, or of the first one that has any, begin the next level.
            starts.append(int(self.first_child[starts[-1]]))
        return tuple(starts)

    def nodes_of(self, items: np.ndarray) -> np.ndarray:
        """The nodes on the way to each item's leaf, from depth 1 on; -1 after the leaf. Shape: (items, depths). A
        binary search in every level, whose nodes are in the order of their ranges; nothing of the size of the trie is
        made, so that a mapped one stays on disk."""
        # Of the same kind as `low`, or the search would convert whole levels.
        slots = self.slots[items].astype(self.low.dtype)
        out = np.full((len(slots), max(len(self.levels) - 2, 0)), -1, dtype=np.int64)
        for depth in range(out.shape[1]):
            start, stop = self.levels[depth + 1 : depth + 3]
            node = start + np.searchsorted(self.low[start:stop], slots, side="right") - 1
            inside = (node >= start) & (slots < self.high[np.maximum(node, start)])
            out[inside, depth] = node[inside]
        return out

    def leaf_of(self, items: np.ndarray) -> np.ndarray:
        """The leaf at which each item's id ends."""
        return self.nodes_of(items).max(1, initial=ROOT)

    def rows_of(self, items: np.ndarray) -> Ragged:
        """The prefix-free tokens of these items."""
        nodes = self.nodes_of(items)
        there = nodes >= 0
        return Ragged.from_lengths(self.token[nodes[there]].astype(np.int32), there.sum(1))

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
        """The child of every node along its token, or -1."""
        child = self.before(nodes, tokens)
        found = (child < self.first_child[nodes + 1]) & (self.token[np.minimum(child, self.nodes - 1)] == tokens)
        return np.where(found, child, -1)

    def before(self, nodes: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """The first child of every node whose token is not smaller, or where the next node's children begin. A
        vectorised binary search over all nodes."""
        low = self.first_child[nodes].astype(np.int64)
        high = self.first_child[nodes + 1].astype(np.int64)
        while (low < high).any():
            middle = (low + high) // 2
            right = (low < high) & (self.token[np.minimum(middle, self.nodes - 1)] < tokens)
            low, high = np.where(right, middle + 1, low), np.where(right, high, np.where(low < high, middle, high))
        return low

    def path(self, node: int) -> list[int]:
        """Tokens from the root to a node."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(int(self.token[node]))
            node = int(np.searchsorted(self.first_child, node, side="right")) - 1
        return tokens[::-1]

    def holds(self, rows: Ragged) -> bool:
        """Whether row i of these prefix-free token rows leads to a leaf where item i is, for all items."""
        if len(rows) != len(self):
            return False
        nodes = np.zeros(len(rows), dtype=np.int64)
        for depth in range(int(rows.lengths.max()) if len(rows) else 0):
            going = np.flatnonzero(rows.lengths > depth)
            nodes[going] = self.walk(nodes[going], rows.values[rows.offsets[:-1][going] + depth].astype(np.int64))
            if (nodes[going] < 0).any():
                return False
        inside = (self.low[nodes] <= self.slots) & (self.slots < self.high[nodes])
        return bool(self.is_leaf(nodes).all() and inside.all())

    def rows(self) -> Ragged:
        """The prefix-free token rows again, row i for item i."""
        return self.rows_of(np.arange(len(self)))

    def extend(self, new: Ragged) -> Trie:
        """A trie with more items: row i of `new` is item `len(self) + i`, behind the old items of its bucket. An old id
        that is a prefix of a new one gets an end token. Only the new rows are sorted; the rest is copied."""
        if not len(self):
            return Trie.build(new)
        if not len(new):
            return self
        if new.lengths.min() < 1:
            raise DataError("an item has no tokens")
        order = lexicographic_order(new)
        return _grown(self, order, _growth(self, new, order))

    def save(self, folder: Path) -> None:
        """One npy file for each array, so that all can be mapped into memory."""
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {name: getattr(self, name) for name in _ARRAYS} | {_SLOTS_FILE: self.slots}
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, *, memory_map: bool = False) -> Trie:
        """Read what `save` wrote; mapped arrays are loaded page by page on use, and processes share them."""
        trie = cls._read(folder, memory_map=memory_map)
        trie._refuse_what_is_no_trie(folder)
        return trie

    @classmethod
    def map(cls, folder: Path) -> Trie:
        """`load` with mapped arrays, for a folder that another process has checked: nothing is read yet."""
        return cls._read(folder, memory_map=True)

    @classmethod
    def _read(cls, folder: Path, *, memory_map: bool) -> Trie:
        trie = cls(*(load_array(folder / f"{name}.npy", memory_map=memory_map) for name in _ARRAYS))
        trie.__dict__["slots"] = load_array(folder / f"{_SLOTS_FILE}.npy", memory_map=memory_map)
        return trie

    def _refuse_what_is_no_trie(self, folder: Path) -> None:
        """The stored numbers are used as array indices: each must be in range, and the nodes must form one tree."""
        arrays, n, nodes = {name: getattr(self, name) for name in _ARRAYS}, len(self.items), len(self.token)
        check = partial(untrusted.integers, arrays, what=str(folder))
        check("first_child", count=nodes + 1, least=1, below=nodes + 1)
        check("token", count=nodes, below=2**31)
        check("low", count=nodes, below=n + 1)
        check("high", count=nodes, below=n + 1)
        check("items", below=n)
        ordered = (np.diff(self.first_child.astype(np.int64)) >= 0).all() and (self.low <= self.high).all()
        # Children come after their parent, or a walk might never end.
        below = (self.first_child[:-1] > np.arange(nodes)).all()
        whole = nodes and self.first_child[0] == 1 and self.first_child[-1] == nodes and self.high[0] == n
        if not (ordered and below and whole and self.low[0] == 0):
            raise untrusted.refuse(f"{folder} does not hold a tree of ids")
        arrays[_SLOTS_FILE] = self.slots
        check(_SLOTS_FILE, count=n, below=n)
        if not np.array_equal(self.slots[self.items], np.arange(n)):
            raise untrusted.refuse(f"{folder}: every item must have exactly one slot in trie order")
        self._checked()


def _joined(levels: list[np.ndarray]) -> np.ndarray:
    """The concatenated levels. The list is emptied, because a large catalogue would not fit into memory twice."""
    out = np.concatenate(levels)
    levels.clear()
    return out


@dataclass(frozen=True, eq=False)
class _Growth:
    """What new rows change. M sorted new rows, A added nodes in their order, T old nodes that rows go through. Row i
    goes before slot `slots_M[i]` of the old trie. Node j goes before old node `before_A[j]`; its parent is old node
    `parents_A[j]` or, where `fresh_A`, added node `parents_A[j]`. Ranges are those of the grown trie."""

    slots_M: np.ndarray
    before_A: np.ndarray
    tokens_A: np.ndarray
    parents_A: np.ndarray
    fresh_A: np.ndarray
    ranges_A2: np.ndarray
    touched_T: np.ndarray
    ranges_T2: np.ndarray


def _growth(trie: Trie, new: Ragged, order: np.ndarray) -> _Growth:
    """Walk all new rows through the trie at once, depth by depth; rows with equal prefixes form a group."""
    rows = len(order)
    slots_M, starts = np.full(rows, -1, dtype=np.int64), np.arange(rows)
    # The node of each row: an old node or, once the row has left the old trie (fresh), the old node before which its
    # added node goes.
    node_M, fresh_M, parent_M = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=bool), np.full(rows, -1)
    changed = starts == 0
    added: list[np.ndarray] = []
    touched = [np.array([[ROOT, 0, len(trie) + rows]])]
    count = 0
    columns = Columns(new)
    for depth in range(columns.width):
        values = columns[depth][order]
        changed[1:] |= values[1:] != values[:-1]
        firsts = np.flatnonzero(changed)
        ends = np.append(firsts[1:], rows)
        here = values[firsts] != ABSENT
        stopped = np.repeat(~here, ends - firsts) & (slots_M < 0)
        slots_M[stopped] = trie.high[node_M[stopped]]
        first, end = firsts[here], ends[here]
        at, fresh, token = node_M[first], fresh_M[first], values[first].astype(np.int64)
        node = np.where(fresh, ROOT, at)
        leaf = ~fresh & trie.is_leaf(node)
        spot = np.where(fresh, trie.first_child[at], trie.before(node, token))
        inside = ~fresh & (spot < trie.first_child[node + 1])
        spot_low = trie.low[np.minimum(spot, trie.nodes - 1)]
        old = inside & (trie.token[np.minimum(spot, trie.nodes - 1)] == token)
        # A row that leaves the old trie goes before the items of the next sibling, or after all items of its last node.
        slot = np.where(fresh, slots_M[first], np.where(inside, spot_low, trie.high[node]))
        low, high = slot + first, slot + end
        # If a new row extends an old leaf, the leaf's items move into an end node, with the new rows that end there.
        opened = leaf & np.append(True, node[1:] != node[:-1])
        ending = opened & (token == END)
        low, high = np.where(ending, trie.low[node] + first, low), np.where(ending, trie.high[node] + end, high)
        moved = opened & ~ending
        parent = np.where(fresh, parent_M[first], node)
        nodes = [np.stack([spot, token, parent, fresh, low, high, first * 2 + 1], 1)[~old]]
        if moved.any():
            p, at = node[moved], first[moved]
            blank = np.zeros(len(p), dtype=np.int64)
            nodes.append(np.stack([spot[moved], blank + END, p, blank, trie.low[p] + at, trie.high[p] + at, at * 2], 1))
        level = np.concatenate(nodes)
        # The last column sorts by row: an end node (2 * row) comes before the node of the row itself (2 * row + 1).
        by_row = np.argsort(level[:, -1], kind="stable")
        number = np.full(len(first), -1)
        number[~old] = count + np.argsort(by_row)[: int((~old).sum())]
        added.append(level[by_row, :-1])
        count += len(level)
        touched.append(np.stack([spot[old], trie.low[spot[old]] + first[old], trie.high[spot[old]] + end[old]], 1))
        group = np.repeat(np.arange(len(first)), end - first)
        member = np.repeat(here, ends - firsts)
        node_M[member], parent_M[member] = spot[group], number[group]
        fresh_M[member], slots_M[member] = ~old[group], np.where(old, -1, slot)[group]
    slots_M[slots_M < 0] = trie.high[node_M[slots_M < 0]]
    table_A6, table_T3 = np.concatenate(added), np.concatenate(touched)
    before, tokens, parents, fresh_A = table_A6[:, :4].T
    return _Growth(slots_M, before, tokens, parents, fresh_A == 1, table_A6[:, 4:], table_T3[:, 0], table_T3[:, 1:])


def _grown(trie: Trie, order: np.ndarray, growth: _Growth) -> Trie:
    """The trie's five arrays with the new rows and nodes inserted."""
    total = len(trie) + len(order)
    index = np.int32 if total < 2**30 else np.int64
    items = np.insert(trie.items.astype(index, copy=False), growth.slots_M, (len(trie) + order).astype(index))
    # How many new rows come before each old slot.
    rows_before = np.cumsum(np.bincount(growth.slots_M, minlength=len(trie) + 1), dtype=index)
    shift = rows_before[trie.low]
    low, high = trie.low + shift, trie.high + shift
    low[growth.touched_T], high[growth.touched_T] = growth.ranges_T2.T
    low = np.insert(low, growth.before_A, growth.ranges_A2[:, 0])
    high = np.insert(high, growth.before_A, growth.ranges_A2[:, 1])
    wide = trie.token.dtype != np.uint16 or (len(growth.tokens_A) and int(growth.tokens_A.max()) >= 2**16)
    small = np.int32 if wide else np.uint16
    token = np.insert(trie.token.astype(small, copy=False), growth.before_A, growth.tokens_A.astype(small))
    counts = np.insert(np.diff(trie.first_child), growth.before_A, 0)
    # New numbers: old node n becomes n + (nodes added before it); added node j becomes before_A[j] + j.
    olds = growth.parents_A + np.searchsorted(growth.before_A, growth.parents_A, side="right")
    news = growth.before_A[np.where(growth.fresh_A, growth.parents_A, 0)] + growth.parents_A
    np.add.at(counts, np.where(growth.fresh_A, news, olds), 1)
    first_child = (1 + np.concatenate([[0], np.cumsum(counts)])).astype(index)
    return Trie(first_child, token, low, high, items)._checked()
