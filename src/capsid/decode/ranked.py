"""From histories of item numbers to ranked items, with filters: what rankers give, and the retriever that asks them.

Recommending, predicting and evaluating all use `Retriever`, so they cannot differ. Knows item numbers, not item ids.
Shapes: U users, F leaves, K items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from capsid.decode.filters import Filter
from capsid.decode.model import FittedModel
from capsid.decode.watch import RootScores, Watch
from capsid.errors import ConfigError, DataError
from capsid.ids.trie import Trie
from capsid.ragged import Ragged
from capsid.settings import Checked, setting


@dataclass(frozen=True, eq=False)
class RankedItems:
    """For every user the best items, best first; -1 and -inf where there are no more. `seen_U` is the probability mass
    that the search has scored, where the probabilities of all items sum to 1."""

    items_UK: np.ndarray
    scores_UK: np.ndarray
    seen_U: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class RankedLeaves:
    """For every user the best leaves, best first; -1 and -inf where there are no more. `steps`: of the model."""

    leaves_UF: np.ndarray
    scores_UF: np.ndarray
    steps: int
    seen_U: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Buckets:
    """The items of ranked leaves. `before_UF` counts allowed items in better leaves, `sizes_UF` in the leaf itself."""

    items: RankedItems
    before_UF: np.ndarray
    sizes_UF: np.ndarray


class Ranker(Protocol):
    """How a recipe turns histories into ranked items."""

    kind: ClassVar[str]

    @property
    def width(self) -> int:
        """Up to this k, the first items do not depend on k."""

    def rank(self, model: FittedModel, histories: Ragged, k: int, allowed: Filter | None = None) -> RankedItems:
        """The k best items after every history (rows of item numbers, none empty)."""


@dataclass(kw_only=True, frozen=True)
class Searches(Checked):
    """Base of rankers with a beam search."""

    width: int = setting(50, "Hypotheses kept per user and step; never fewer than the items asked for.", least=1)

    def wanted(self, model: FittedModel, k: int) -> int:
        """How many leaves a search has to find for the k best items."""
        if k < 1:
            raise ConfigError(f"k must be at least 1, got {k}")
        return min(max(self.width, k), len(model.trie))


def validating(ranker: Ranker) -> Ranker:
    """The ranker for validations during training: its cheaper form `quick`, if it has one."""
    quick: Ranker = getattr(ranker, "quick", ranker)
    return quick


@runtime_checkable
class KeepsRoots(Protocol):
    """A ranker that can tell the log-probabilities of the root's children, which it has computed anyway."""

    def rank_with_roots(
        self, model: FittedModel, histories: Ragged, k: int, allowed: Filter | None, roots: RootScores
    ) -> RankedItems:
        """See `Ranker.rank`. What `roots` holds then are the scores of the model's own trie."""


@runtime_checkable
class RanksLeaves(Protocol):
    """A ranker that orders ids: items that share an id share a score and have a fixed order. A class that inherits this
    ranks items by its leaves."""

    def leaves(
        self, model: FittedModel, histories: Ragged, k: int, allowed: Filter | None = None, watch: Watch | None = None
    ) -> RankedLeaves:
        """The k best leaves after every history."""

    def rank(self, model: FittedModel, histories: Ragged, k: int, allowed: Filter | None = None) -> RankedItems:
        """The k best items after every history; equal scores in trie order."""
        leaves = self.leaves(model, histories, min(k, len(model.trie)), allowed)
        return expand(model.trie, leaves, k, allowed).items


def expand(trie: Trie, ranked: RankedLeaves, k: int, allowed: Filter | None) -> Buckets:
    """Buckets in order of score, items of a bucket in its order, without those that the filter blocks."""
    users, width = ranked.leaves_UF.shape
    slots = leaf_slots(trie, ranked.leaves_UF, allowed)
    cell, slot = slots.row_numbers, slots.values
    sizes_UF = slots.lengths.reshape(users, width)
    before_UF = np.cumsum(sizes_UF, axis=1) - sizes_UF
    user = cell // width
    rank = Ragged.ranges(0, sizes_UF.sum(1)).values
    kept = rank < k
    items = np.full((users, k), -1, dtype=np.int64)
    scores = np.full((users, k), -np.inf, dtype=np.float32)
    items[user[kept], rank[kept]] = trie.items[slot[kept]]
    scores[user[kept], rank[kept]] = ranked.scores_UF.ravel()[cell[kept]]
    return Buckets(RankedItems(items, scores, ranked.seen_U), before_UF, sizes_UF)


def best_items(
    users: int, user_E: np.ndarray, items_E: np.ndarray, scores_E: np.ndarray, k: int, seen_U: np.ndarray | None
) -> RankedItems:
    """The k best of every user's items, from entries ordered by user; equal scores keep the order of the entries."""
    order_E = np.lexsort((-scores_E, user_E))
    rank_E = Ragged.ranges(0, np.bincount(user_E, minlength=users)).values
    kept = rank_E < k
    user, rank, chosen = user_E[kept], rank_E[kept], order_E[kept]
    items_UK = np.full((users, k), -1, dtype=np.int64)
    scores_UK = np.full((users, k), -np.inf, dtype=np.float32)
    items_UK[user, rank] = items_E[chosen]
    scores_UK[user, rank] = scores_E[chosen]
    return RankedItems(items_UK, scores_UK, seen_U)


def leaf_slots(trie: Trie, leaves_UF: np.ndarray, allowed: Filter | None) -> Ragged:
    """The slots of the items of leaves, without those that the filter blocks. One row per leaf of each user, numbered
    user by user; empty where there is no leaf."""
    there = leaves_UF >= 0
    nodes = np.where(there, leaves_UF, 0)
    low = trie.low[nodes].astype(np.int64)
    counts = np.where(there, trie.high[nodes] - low, 0).astype(np.int64).ravel()
    places = Ragged.ranges(low.ravel(), counts)
    if allowed is None:
        return places
    return places.keep(allowed.permits(places.row_numbers // leaves_UF.shape[1], places.values))


@dataclass(frozen=True, eq=False)
class Retriever:
    """A fitted model and how its items are ranked."""

    model: FittedModel
    ranker: Ranker

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
        allowed = self.filter(histories, filter_history=filter_history, allow=allow, deny=deny)
        return self.ranker.rank(self.model, histories, k, allowed)

    def rank_batches(
        self, histories: Ragged, rows: range, k: int, *, filter_history: bool, batch: int
    ) -> Iterator[tuple[np.ndarray, RankedItems]]:
        """`rank` for some of the histories, `batch` of them at a time, with their row numbers."""
        for start in range(rows.start, rows.stop, batch):
            rows_B = np.arange(start, min(start + batch, rows.stop))
            yield rows_B, self.rank(histories.take(rows_B), k, filter_history=filter_history)

    def filter(
        self,
        histories: Ragged,
        *,
        filter_history: bool,
        allow: np.ndarray | None = None,
        deny: np.ndarray | None = None,
    ) -> Filter | None:
        """Which items each user may get; None: all."""
        if len(histories) and histories.lengths.min() < 1:
            raise DataError("a history is empty", hint="give at least one known item")
        seen = histories if filter_history else None
        return self.model.filter(len(histories), seen=seen, allow=allow, deny=deny)
