"""Describes prefixes of ids by the items below them: how many, how popular, how alike, their words and examples.

A prefix may hold millions of items, so words, examples and similarity come from a sample that is spread evenly over
the items below it. Counts are exact. Knows trie nodes and row numbers, no item ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from capsid.evaluate.capsule_report import BACKGROUND, informative, words_of
from capsid.ids.trie import Trie

EXAMPLES, WORDS = 3, 4
# How many items below a prefix are looked at: for its examples, its words, and the similarity of its vectors.
FOR_EXAMPLES, FOR_WORDS, FOR_SIMILARITY = 2_000, 200, 100


@dataclass(frozen=True)
class Below:
    """What lies below a node. `taken` counts interactions in training, `similarity` is the mean cosine of pairs."""

    items: int
    taken: int
    leaf: bool
    words: tuple[str, ...]
    examples: tuple[int, ...]
    similarity: float | None


@dataclass(frozen=True, eq=False)
class Prefixes:
    """The trie of a catalogue with titles, training counts and, if stored, the vectors that ids were made from."""

    trie: Trie
    titles: Sequence[str]
    counts: np.ndarray
    categories: pl.Series | None = None
    vectors: np.ndarray | None = None

    def below(self, node: int) -> Below:
        """The description of a node."""
        low, high = int(self.trie.low[node]), int(self.trie.high[node])
        whole = high - low == len(self.trie)
        popular = self.sample(node, FOR_EXAMPLES)
        best = popular[np.argsort(-self.counts[popular], kind="stable")][:EXAMPLES]
        return Below(
            items=high - low,
            taken=int(self._taken[high] - self._taken[low]),
            leaf=bool(self.trie.is_leaf(np.array([node]))[0]),
            # Nothing distinguishes all items from themselves.
            words=() if whole else self.words(self.sample(node, FOR_WORDS)),
            examples=tuple(int(row) for row in best),
            similarity=self._similarity(self.sample(node, FOR_SIMILARITY)),
        )

    def sample(self, node: int, most: int) -> np.ndarray:
        """At most this many rows below a node, spread evenly over its ids."""
        low, high = int(self.trie.low[node]), int(self.trie.high[node])
        if high - low <= most:
            return self.trie.items[low:high]
        return self.trie.items[low + np.arange(most) * (high - low) // most]

    def words(self, rows: np.ndarray) -> tuple[str, ...]:
        """Words and categories that these items share more than by chance."""
        counts, titles = self._background
        return informative([self._terms(int(row)) for row in rows], counts, titles, WORDS)

    @cached_property
    def _background(self) -> tuple[Counter[str], int]:
        step = max(1, len(self.trie) // BACKGROUND)
        terms = [self._terms(int(row)) for row in self.trie.items[::step]]
        return Counter(term for item in terms for term in item), len(terms)

    @cached_property
    def _taken(self) -> np.ndarray:
        """Training counts summed in trie order, so that a node's sum is a difference."""
        return np.concatenate([[0], np.cumsum(self.counts[self.trie.items], dtype=np.int64)])

    def _terms(self, row: int) -> frozenset[str]:
        words = words_of(self.titles[row])
        if self.categories is None or row >= len(self.categories):
            return words
        return words | _categories(self.categories[row])

    def _similarity(self, rows: np.ndarray) -> float | None:
        """The mean cosine of all pairs; None without vectors or with fewer than two items."""
        if self.vectors is None or len(rows) < 2 or int(rows.max()) >= len(self.vectors):
            return None
        vectors_RD = np.asarray(self.vectors[rows], dtype=np.float64)
        norms_R1 = np.linalg.norm(vectors_RD, axis=1, keepdims=True)
        unit_RD = vectors_RD / np.where(norms_R1 > 0, norms_R1, 1.0)
        # |sum of unit vectors|^2 is the sum over all pairs, each with itself included.
        own = float((unit_RD**2).sum())
        pairs = float((unit_RD.sum(0) ** 2).sum()) - own
        return pairs / (len(rows) * (len(rows) - 1))


def _categories(value: object) -> frozenset[str]:
    """Category names as whole terms: a list, or a text with separators."""
    if isinstance(value, pl.Series):
        value = value.to_list()
    if isinstance(value, str):
        value = value.replace("|", ",").split(",")
    if not isinstance(value, list):
        return frozenset()
    return frozenset(name.strip().lower() for name in value if isinstance(name, str) and name.strip())
