"""From histories of item numbers to ranked items: tokens, search, buckets expanded, filters kept.

The one place where recommending, predicting and evaluating meet, so that they cannot differ. Knows numbers, not ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capsid.decode.beam import BeamSearch, RankedLeaves
from capsid.decode.filters import Filter
from capsid.decode.protocol import Decodable
from capsid.errors import DataError
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.trie import Trie
from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class RankedItems:
    """For every user the best items, best first; -1 and -inf where there are no more.

    `before_UF` counts the allowed items in better buckets and `sizes_UF` those inside, for each of the ranked `leaves`.
    """

    items_UK: np.ndarray
    scores_UK: np.ndarray
    leaves: RankedLeaves
    before_UF: np.ndarray
    sizes_UF: np.ndarray


@dataclass(frozen=True, eq=False)
class Retriever:
    """A model with its ids and trie. `history` is how many items of a history are read."""

    model: Decodable
    ids: SemanticIds
    trie: Trie
    decoder: BeamSearch
    history: int

    def rank(
        self,
        histories: Ragged,
        k: int,
        *,
        filter_history: bool,
        allow: np.ndarray | None = None,
        deny: np.ndarray | None = None,
    ) -> RankedItems:
        """The k best items after every history (rows of item numbers, none empty)."""
        if len(histories) and histories.lengths.min() < 1:
            raise DataError("a history is empty", hint="give at least one known item")
        only = None
        if filter_history or allow is not None or deny is not None:
            seen = histories if filter_history else None
            only = Filter.build(self.trie, len(histories), seen=seen, allow=allow, deny=deny)
        return self.search(histories, k, only)

    def search(self, histories: Ragged, k: int, only: Filter | None) -> RankedItems:
        """The k best items that a filter leaves, after every history."""
        tokens = self.ids.read(histories, last=self.history)
        leaves = self.decoder.search(self.model, tokens, self.trie, k=min(k, len(self.trie)), only=only)
        return _expand(self.trie, leaves, k, only)


def _expand(trie: Trie, leaves: RankedLeaves, k: int, only: Filter | None) -> RankedItems:
    """Buckets in order of score, items of a bucket in its order, without what the filter forbids."""
    users, width = leaves.leaves_UF.shape
    there = leaves.leaves_UF >= 0
    nodes = np.where(there, leaves.leaves_UF, 0)
    low = trie.low[nodes].astype(np.int64)
    counts = np.where(there, trie.high[nodes] - low, 0).astype(np.int64).ravel()
    places = Ragged.ranges(low.ravel(), counts)
    if only is not None:
        places = places.keep(only.permits(places.row_numbers // width, places.values))
    cell, place = places.row_numbers, places.values
    sizes_UF = places.lengths.reshape(users, width)
    before_UF = np.cumsum(sizes_UF, axis=1) - sizes_UF
    user = cell // width
    rank = Ragged.ranges(0, sizes_UF.sum(1)).values
    kept = rank < k
    items = np.full((users, k), -1, dtype=np.int64)
    scores = np.full((users, k), -np.inf, dtype=np.float32)
    items[user[kept], rank[kept]] = trie.items[place[kept]]
    scores[user[kept], rank[kept]] = leaves.scores_UF.ravel()[cell[kept]]
    return RankedItems(items, scores, leaves, before_UF, sizes_UF)
