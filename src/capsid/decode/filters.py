"""Which items may be recommended, asked of trie nodes: a node is open while one allowed item is below it.

Allow and deny lists and each user's history become sorted places of the trie's item order, so that a whole batch of
nodes is answered by binary searches. A request costs as much as its lists are long, not a pass over the catalogue.
NumPy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capsid.errors import DataError
from capsid.ids.trie import Trie
from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class Filter:
    """`listed` are sorted places: the only allowed ones if `only_listed`, else those that nobody gets (None: no list).

    `taken` are users' own places as user * stride + place, sorted; none of them is blocked for everybody.
    """

    trie: Trie
    listed: np.ndarray | None
    only_listed: bool
    taken: np.ndarray
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
        """`seen` row u: items user u must not get. `allow`, `deny`: item numbers, for all users.

        `blocked` are denied items as `places_of` gives them: a long list that many requests share is sorted once.
        """
        listed = None if deny is None else places_of(trie, deny)
        if blocked is not None:
            listed = blocked if listed is None else np.union1d(blocked, listed)
        if allow is not None:
            allowed = places_of(trie, allow)
            listed = allowed if listed is None else allowed[~_among(listed, allowed)]
        only = cls(trie, listed, allow is not None, np.zeros(0, dtype=np.int64), len(trie) + 1)
        if not only._everybody():
            raise DataError("the allow and deny lists leave no item", hint="loosen one of them")
        return only if seen is None else only._without(seen, users)

    def _everybody(self) -> int:
        """How many items are not blocked for everybody."""
        if self.listed is None:
            return max(len(self.trie), 1)
        return len(self.listed) if self.only_listed else len(self.trie) - len(self.listed)

    def _without(self, seen: Ragged, users: int) -> Filter:
        user = np.repeat(np.arange(users), seen.lengths)
        place = self.trie.positions[seen.values].astype(np.int64)
        taken = np.unique(user * self.stride + place)
        taken = taken[self._listing_permits(taken % self.stride)]
        return Filter(self.trie, self.listed, self.only_listed, taken, self.stride)

    def open(self, users: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Is there anything left to recommend below each node, for its user?"""
        low, high = self.trie.low[nodes].astype(np.int64), self.trie.high[nodes].astype(np.int64)
        left = high - low
        if self.listed is not None:
            listed = np.searchsorted(self.listed, high) - np.searchsorted(self.listed, low)
            left = listed if self.only_listed else left - listed
        if len(self.taken):
            base = users * self.stride
            left = left - (np.searchsorted(self.taken, base + high) - np.searchsorted(self.taken, base + low))
        return left > 0

    def permits(self, users: np.ndarray, places: np.ndarray) -> np.ndarray:
        """May the item at this place of the trie's order go to this user?"""
        return self._listing_permits(places) & ~_among(self.taken, users * self.stride + places)

    def _listing_permits(self, places: np.ndarray) -> np.ndarray:
        if self.listed is None:
            return np.ones(len(places), dtype=bool)
        return _among(self.listed, places) == self.only_listed


def places_of(trie: Trie, items: np.ndarray) -> np.ndarray:
    """Sorted places of these items in the trie's order."""
    return np.unique(trie.positions[np.asarray(items, dtype=np.int64)]).astype(np.int64)


def _among(ordered: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Which values are in a sorted array."""
    if not len(ordered):
        return np.zeros(len(values), dtype=bool)
    found = np.searchsorted(ordered, values)
    return ordered[np.minimum(found, len(ordered) - 1)] == values
