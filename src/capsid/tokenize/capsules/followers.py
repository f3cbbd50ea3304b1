"""How well plain counts over ids predict the next item: a measure of ids that takes seconds and trains nothing.

The last training item of some users is held out; all other pairs of neighbours are counted by the prefixes of their
ids. A candidate scores the share of followers of the last item's prefix that have the candidate's prefix, times the
candidate's popularity among the items of that prefix, summed over depths. Items that share an id can thus only be told
apart by popularity. Never sees validation or test. NumPy and SciPy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from capsid.base.randomness import numpy_rng
from capsid.ids.prefixes import prefix_keys
from capsid.ragged import Ragged

USERS, BLOCK, TOP = 2_000, 250, 10


@dataclass(frozen=True, eq=False)
class Followers:
    """Pairs of neighbours that are counted, and the held-out last pairs."""

    items: int
    before_E: np.ndarray
    after_E: np.ndarray
    last_U: np.ndarray
    target_U: np.ndarray

    @classmethod
    def of(cls, sequences: Ragged, items: int, *, users: int = USERS, seed: int = 0) -> Followers | None:
        """Hold out the last item of at most `users` users with two or more; None without such users."""
        able = np.flatnonzero(sequences.lengths >= 2)
        if not len(able):
            return None
        chosen = np.sort(numpy_rng(seed, "followers").permutation(able)[:users])
        ends = np.asarray(sequences.offsets[1:])[chosen]
        values = np.asarray(sequences.values)
        inside = np.ones(len(values), dtype=bool)
        inside[np.asarray(sequences.offsets[:-1])[sequences.lengths > 0]] = False
        inside[ends - 1] = False
        after = np.flatnonzero(inside)
        return cls(items, values[after - 1], values[after], values[ends - 2], values[ends - 1])

    def recall(self, codes: Ragged) -> float:
        """The share of held-out items among the ten best of all items."""
        prefixes = _prefixes(codes)
        popularity_N = np.bincount(self.after_E, minlength=self.items) + 1.0
        levels = [self._level(prefix_N, popularity_N) for prefix_N in prefixes]
        hits = 0
        for start in range(0, len(self.last_U), BLOCK):
            last_B, target_B = self.last_U[start : start + BLOCK], self.target_U[start : start + BLOCK]
            scores_BN = np.zeros((len(last_B), self.items), dtype=np.float32)
            for prefix_N, (shares, own_N) in zip(prefixes, levels):
                scores_BN += shares[prefix_N[last_B]].toarray()[:, prefix_N] * own_N
            scores_BN[np.arange(len(last_B)), last_B] = -1.0
            target_B1 = scores_BN[np.arange(len(last_B)), target_B][:, None]
            # Ties count half: without any information the measure is chance, whatever the order of items.
            rank_B = (scores_BN > target_B1).sum(1) + 0.5 * ((scores_BN == target_B1).sum(1) - 1)
            hits += int((rank_B < TOP).sum())
        return hits / len(self.last_U)

    def _level(self, prefix_N: np.ndarray, popularity_N: np.ndarray) -> tuple[Any, np.ndarray]:
        """Shares of followers between prefixes, and every item's share of its prefix's popularity."""
        from scipy.sparse import csr_matrix, diags

        size = int(prefix_N.max()) + 1
        pairs = (np.ones(len(self.before_E), dtype=np.float32), (prefix_N[self.before_E], prefix_N[self.after_E]))
        counts = csr_matrix(pairs, shape=(size, size))
        totals = np.asarray(counts.sum(1)).ravel()
        own_N = popularity_N / np.bincount(prefix_N, weights=popularity_N)[prefix_N]
        return (diags(1 / np.maximum(totals, 1)) @ counts).tocsr(), own_N.astype(np.float32)


def _prefixes(codes: Ragged) -> list[np.ndarray]:
    """The number of every item's prefix at each depth; a shorter id counts with the whole of it."""
    keys_NL = prefix_keys(codes.dense())
    return [np.unique(keys_N, return_inverse=True)[1].ravel() for keys_N in keys_NL.T]
