"""Which items may be recommended: a trie node is open while an allowed item is below it.

Allow and deny lists and each user's history become sorted slots (indices in trie order), so that a whole batch of nodes
is answered by binary searches. The cost of a request grows with its lists, not with the catalogue. NumPy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capsid.errors import DataError
from capsid.ids.trie import Trie
from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class Filter:
    """`listed` are sorted slots: the only allowed ones if `only_listed`, else the denied ones (None: no list). `seen`
    are the slots that single users must not get, as sorted keys user * stride + slot; slots that the lists block for
    everybody are not among them, so nothing is subtracted twice."""

    trie: Trie
    listed: np.ndarray | None
    only_listed: bool
    seen: np.ndarray
    stride: int

    @classmethod
    def build(
        cls,
        trie: Trie,
        users: int,
        *,
        seen: Ragged | None = None,
        allow: np.ndarray | None = None,
        deny: np.ndarray | None = None,
        blocked: np.ndarray | None = None,
    ) -> Filter:
        """`seen` row u: items that user u must not get. `allow`, `deny`: item numbers, for all users. `blocked` are
        denied slots, as `slots_of` returns them: a long list that many requests share is sorted once."""
        listed = None if deny is None else slots_of(trie, deny)
        if blocked is not None:
            listed = blocked if listed is None else np.union1d(blocked, listed)
        if allow is not None:
            kept = slots_of(trie, allow)
            listed = kept if listed is None else kept[~_among(listed, kept)]
        allowed = cls(trie, listed, allow is not None, np.zeros(0, dtype=np.int64), len(trie) + 1)
        if not allowed._everybody():
            raise DataError("the allow and deny lists leave no item", hint="loosen one of them")
        return allowed if seen is None else allowed._without(seen, users)

    def _everybody(self) -> int:
        """How many items the lists leave."""
        if self.listed is None:
            return max(len(self.trie), 1)
        return len(self.listed) if self.only_listed else len(self.trie) - len(self.listed)

    def _without(self, seen: Ragged, users: int) -> Filter:
        user = np.repeat(np.arange(users), seen.lengths)
        keys = np.unique(user * self.stride + self.trie.slots[seen.values].astype(np.int64))
        keys = keys[self._lists_permit(keys % self.stride)]
        return Filter(self.trie, self.listed, self.only_listed, keys, self.stride)

    def over(self, trie: Trie) -> Filter:
        """The same filter over another trie of the same items."""
        listed = None if self.listed is None else slots_of(trie, self.trie.items[self.listed])
        user, slot = np.divmod(self.seen, self.stride)
        seen = np.sort(user * self.stride + trie.slots[self.trie.items[slot]].astype(np.int64))
        return Filter(trie, listed, self.only_listed, seen, self.stride)

    def open(self, users: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Is there anything left to recommend below each node, for its user?"""
        left = self._left(nodes)
        if len(self.seen):
            base = users * self.stride
            low, high = base + self.trie.low[nodes], base + self.trie.high[nodes]
            left = left - (np.searchsorted(self.seen, high) - np.searchsorted(self.seen, low))
        return left > 0

    def open_first(self, users: int, nodes: np.ndarray) -> np.ndarray:
        """The same for all children of the root, in trie order, and every user. Shape: (users, nodes)."""
        left_C = self._left(nodes)
        open_UC = np.repeat((left_C > 0)[None], users, axis=0)
        if len(self.seen):
            user, slot = np.divmod(self.seen, self.stride)
            # Every slot is below one of them, and slots rise with them.
            child = np.searchsorted(self.trie.low[nodes], slot, side="right") - 1
            pairs, counts = np.unique(user * len(nodes) + child, return_counts=True)
            user, child = np.divmod(pairs, len(nodes))
            open_UC[user, child] = left_C[child] > counts
        return open_UC

    def _left(self, nodes: np.ndarray) -> np.ndarray:
        """How many items below each node the lists permit."""
        # Items below a node fill the slots low .. high, so a count in this range is a difference of two ranks.
        low, high = self.trie.low[nodes].astype(np.int64), self.trie.high[nodes].astype(np.int64)
        if self.listed is None:
            return high - low
        listed = np.searchsorted(self.listed, high) - np.searchsorted(self.listed, low)
        return listed if self.only_listed else high - low - listed

    def permits(self, users: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """May the item in this slot be recommended to this user?"""
        return self._lists_permit(slots) & ~_among(self.seen, users * self.stride + slots)

    def _lists_permit(self, slots: np.ndarray) -> np.ndarray:
        if self.listed is None:
            return np.ones(len(slots), dtype=bool)
        return _among(self.listed, slots) == self.only_listed


def slots_of(trie: Trie, items: np.ndarray) -> np.ndarray:
    """The sorted slots of these items."""
    return np.unique(trie.slots[np.asarray(items, dtype=np.int64)]).astype(np.int64)


def _among(ordered: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Which values are in a sorted array."""
    if not len(ordered):
        return np.zeros(len(values), dtype=bool)
    found = np.searchsorted(ordered, values)
    return ordered[np.minimum(found, len(ordered) - 1)] == values
