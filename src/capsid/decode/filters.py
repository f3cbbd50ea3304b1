"""Which items may be recommended, asked of trie nodes: a node is open while one allowed item is below it.

Allow and deny lists and each user's history become counts over the trie's item order, so that a whole batch of
nodes is answered by two look-ups. NumPy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capsid.errors import DataError
from capsid.ids.trie import Trie
from capsid.ragged import Ragged, offsets_of


@dataclass(frozen=True, eq=False)
class Filter:
    """`running[p]` allowed items stand before place p (None: all are allowed, and nothing as long as the catalogue is
    built for a request); `taken` are users' own places as user * stride + place.
    """

    trie: Trie
    running: np.ndarray | None
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
    ) -> Filter:
        """`seen` row u: items user u must not get. `allow`, `deny`: item numbers, for all users."""
        running = None if allow is None and deny is None else _running(trie, allow, deny)
        stride = len(trie) + 1
        taken = np.zeros(0, dtype=np.int64)
        if seen is not None:
            place = trie.positions[seen.values].astype(np.int64)
            taken = np.unique(seen.row_numbers * stride + place)
            if running is not None:
                place = taken % stride
                taken = taken[running[place + 1] > running[place]]
        return cls(trie, running, taken, stride)

    def open(self, users: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Is there anything left to recommend below each node, for its user?"""
        low, high = self.trie.low[nodes].astype(np.int64), self.trie.high[nodes].astype(np.int64)
        left = high - low if self.running is None else self.running[high] - self.running[low]
        if len(self.taken):
            base = users * self.stride
            left = left - (np.searchsorted(self.taken, base + high) - np.searchsorted(self.taken, base + low))
        return left > 0

    def permits(self, users: np.ndarray, places: np.ndarray) -> np.ndarray:
        """May the item at this place of the trie's order go to this user?"""
        fine = np.ones(len(places), dtype=bool)
        if self.running is not None:
            fine = self.running[places + 1] > self.running[places]
        if len(self.taken):
            keys = users * self.stride + places
            found = np.searchsorted(self.taken, keys)
            fine &= self.taken[np.minimum(found, len(self.taken) - 1)] != keys
        return fine


def _running(trie: Trie, allow: np.ndarray | None, deny: np.ndarray | None) -> np.ndarray:
    """How many allowed items stand before each place."""
    allowed = np.full(len(trie), allow is None)
    if allow is not None:
        allowed[np.asarray(allow, dtype=np.int64)] = True
    if deny is not None:
        allowed[np.asarray(deny, dtype=np.int64)] = False
    if not allowed.any():
        raise DataError("the allow and deny lists leave no item", hint="loosen one of them")
    return offsets_of(allowed[trie.items])
