"""Answers queries: the next items after a history of item ids. Python, the command line and HTTP all use it.

Queries that can share a search are batched. The search itself excludes the items that a user must not get (history,
deny list, retired items). Works on a fitted method and its catalogue; does not know files or training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from capsid.base.popularity import popularity_order
from capsid.decode.filters import Filter, slots_of
from capsid.decode.ranked import RankedItems, Retriever
from capsid.errors import DataError
from capsid.evaluate.metrics import check_k
from capsid.ragged import Ragged
from capsid.stored import Catalogue

# Users per search: enough to fill the matrix products, few enough to stay in the caches (benchmarks/decode.py).
BATCH = 64


@dataclass(frozen=True)
class Recommendation:
    """Items, best first. `personal` is False if no item of the history is known; then the items are the most popular.
    `seen` is the share of the probability mass that the search covered, for methods whose item probabilities sum to
    1."""

    items: tuple[str, ...]
    scores: tuple[float, ...]
    titles: tuple[str, ...]
    personal: bool = True
    seen: float | None = None

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class Query:
    """One query. `unknown` says what to do with unknown ids in any of its lists: "raise" an error or "drop" them."""

    history: tuple[str, ...]
    k: int = 10
    filter_history: bool = True
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    unknown: Literal["raise", "drop"] = "raise"

    def __post_init__(self) -> None:
        check_k(self.k)
        if self.unknown not in ("raise", "drop"):
            raise DataError(f"unknown must be raise or drop, got {self.unknown!r}", hint="drop leaves out unknown ids")


@dataclass(frozen=True, eq=False)
class Rows:
    """A query in item numbers."""

    history: np.ndarray
    excluded: np.ndarray
    allow: np.ndarray | None


@dataclass(frozen=True, eq=False)
class Answerer:
    """A search with its catalogue. It is immutable, so several threads may use it."""

    retriever: Retriever
    catalogue: Catalogue

    def answer(self, queries: Sequence[Query]) -> list[Recommendation]:
        """One answer per query, in order. A history without known items gets the most popular items."""
        rows = [self.rows(query) for query in queries]
        out: list[Recommendation | None] = [None] * len(queries)
        groups: dict[Any, list[int]] = {}
        for number, query in enumerate(queries):
            if self.nothing_left(rows[number]):
                out[number] = Recommendation((), (), ())
            elif len(rows[number].history):
                groups.setdefault(self.group(query), []).append(number)
            else:
                out[number] = self._popular(query, rows[number])
        for numbers in groups.values():
            for start in range(0, len(numbers), BATCH):
                part = numbers[start : start + BATCH]
                ranked = self._rank([rows[n] for n in part], max(queries[n].k for n in part))
                for row, number in enumerate(part):
                    out[number] = self.personal(ranked, row, queries[number].k)
        return [answer for answer in out if answer is not None]

    def group(self, query: Query) -> tuple[Any, ...]:
        """Queries with equal groups share a search: one search for the largest k answers all of them. If k exceeds the
        beam width, k sets the width of the search, so only queries with the same k share one."""
        return query.allow, query.k if query.k > self.retriever.ranker.width else 0

    @cached_property
    def _blocked(self) -> np.ndarray | None:
        """Slots of the retired items, sorted once for all searches."""
        retired = self.catalogue.retired
        if not retired:
            return None
        return slots_of(self.retriever.model.trie, self.catalogue.items.numbers(sorted(retired)))

    @cached_property
    def _by_popularity(self) -> tuple[np.ndarray, np.ndarray]:
        """All items, the most popular first, and the rank of each in that order."""
        order = popularity_order(self.catalogue.counts)
        ranks = np.empty(len(order), dtype=np.int64)
        ranks[order] = np.arange(len(order))
        return order, ranks

    def rows(self, query: Query) -> Rows:
        """A query in item numbers."""
        items = self.catalogue.items
        history = items.numbers(query.history, missing=query.unknown)
        deny = items.numbers(query.deny, missing=query.unknown)
        allow = None if query.allow is None else items.numbers(query.allow, missing=query.unknown)
        left = len(np.setdiff1d(allow, deny)) if allow is not None else len(items) - len(np.unique(deny))
        if not left:
            raise DataError("the allow and deny lists leave no item", hint="loosen one of them")
        excluded = np.concatenate([history, deny]) if query.filter_history else deny
        return Rows(history, excluded, allow)

    def nothing_left(self, rows: Rows) -> bool:
        """Whether all items that the query allows are retired; then the answer is an empty list."""
        allow = rows.allow
        if self._blocked is None:
            return False
        if allow is None:
            return len(self._blocked) == len(self.catalogue.items)
        return bool(np.isin(slots_of(self.retriever.model.trie, allow), self._blocked).all())

    def _rank(self, rows: list[Rows], k: int) -> RankedItems:
        histories = Ragged.from_rows([r.history for r in rows], np.int64)
        return self.retriever.ranker.rank(self.retriever.model, histories, k, self.allowed(rows))

    def allowed(self, rows: list[Rows]) -> Filter | None:
        """The filter of one group's users; None if nothing is excluded."""
        excluded = Ragged.from_rows([r.excluded for r in rows], np.int64)
        return self.retriever.model.filter(len(rows), seen=excluded, allow=rows[0].allow, blocked=self._blocked)

    def _popular(self, query: Query, rows: Rows) -> Recommendation:
        counts, (order, ranks) = self.catalogue.counts, self._by_popularity
        excluded = rows.excluded
        if self._blocked is not None:
            excluded = np.concatenate([excluded, self.retriever.model.trie.items[self._blocked]])
        if rows.allow is None:
            # At most len(excluded) excluded items come before the k-th item that is kept.
            candidates = order[: query.k + len(excluded)]
        else:
            candidates = order[np.sort(ranks[np.unique(rows.allow)])]
        items = candidates[~np.isin(candidates, excluded)][: query.k]
        shares = np.log((counts[items] + 0.5) / (counts.sum() + 0.5 * len(counts)))
        return self._recommendation(items, shares, personal=False)

    def personal(self, ranked: RankedItems, row: int, k: int) -> Recommendation:
        """The first k items of one user's ranking, with their ids and titles."""
        items, scores = ranked.items_UK[row, :k], ranked.scores_UK[row, :k]
        seen = None if ranked.seen_U is None else float(ranked.seen_U[row])
        return self._recommendation(items[items >= 0], scores[items >= 0], personal=True, seen=seen)

    def _recommendation(
        self, items: np.ndarray, scores: np.ndarray, *, personal: bool, seen: float | None = None
    ) -> Recommendation:
        return Recommendation(
            tuple(self.catalogue.items.ids(items)),
            tuple(float(s) for s in scores),
            tuple(self.catalogue.title(i) for i in items),
            personal,
            seen,
        )
