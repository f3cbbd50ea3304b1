"""How well the next item is known from which items followed which in training: a look at data, not a method.

A candidate's score is sum_j log(1 + c_j) / j, where c_j counts how often it came j places after the j-th last item of
the history. Only candidates that followed are ranked, and items of the history are left out. With `ranks`, candidates
that sort after the last item get `weight` more: the order of ids as a feature. Knows item numbers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from capsid.data.split import Cases
from capsid.ragged import Ragged

DISTANCES = 3
BATCH = 1024
# What the order of ids may add to a score; the best of them for validation is used.
WEIGHTS = (-4.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, eq=False)
class FollowerScores:
    """For every distance a sparse matrix of scores: row i holds what followed item i."""

    by_distance: tuple[Any, ...]

    @classmethod
    def count(cls, sequences: Ragged, items: int) -> FollowerScores:
        """From training sequences."""
        from scipy.sparse import csr_array

        found = []
        for distance in range(1, DISTANCES + 1):
            lengths = np.maximum(sequences.lengths - distance, 0)
            before, after = (sequences.slices(start, lengths).values for start in (0, distance))
            counts = csr_array((np.ones(len(before)), (before, after)), shape=(items, items))
            counts.sum_duplicates()
            counts.data = np.log1p(counts.data) / distance
            found.append(counts)
        return cls(tuple(found))

    def hits(self, cases: Cases, k: int = 10, ranks: np.ndarray | None = None, weight: float = 0.0) -> np.ndarray:
        """Whether each target is among the best k; equal scores share their places. Shape: (cases,)."""
        return np.concatenate([_hits(part, self, k, ranks, weight) for part in _batches(cases)] or [np.zeros(0, bool)])

    def known(self, cases: Cases) -> float:
        """Share of the cases whose target followed their last item in training."""
        if not len(cases):
            return 0.0
        first = self.by_distance[0]
        return float((first[_last(cases, 1), cases.targets] > 0).mean())


def probe_weight(scores: FollowerScores, cases: Cases, ranks: np.ndarray) -> float:
    """What the order of ids is worth for these cases, 0 if it is worth nothing."""
    recall = {weight: float(scores.hits(cases, ranks=ranks, weight=weight).mean()) for weight in WEIGHTS}
    return max(WEIGHTS, key=lambda weight: (recall[weight], -abs(weight)))


def _hits(cases: Cases, scores: FollowerScores, k: int, ranks: np.ndarray | None, weight: float) -> np.ndarray:
    items = scores.by_distance[0].shape[0]
    total: Any = 0
    for distance, matrix in enumerate(scores.by_distance, start=1):
        place = np.flatnonzero(cases.histories.lengths >= distance)
        total = total + _rows(matrix, _last(cases, distance), place, len(cases))
    row_E = np.repeat(np.arange(len(cases)), np.diff(total.indptr))
    column_E, score_E = total.indices.astype(np.int64), total.data
    if ranks is not None:
        score_E = score_E + weight * (ranks[column_E] > ranks[_last(cases, 1)][row_E])
    seen = np.isin(row_E * items + column_E, cases.histories.row_numbers * items + cases.histories.values)
    row_E, column_E, score_E = row_E[~seen], column_E[~seen], score_E[~seen]
    target_C = np.full(len(cases), np.inf)
    own = column_E == cases.targets[row_E]
    target_C[row_E[own]] = score_E[own]
    above = np.bincount(row_E[score_E > target_C[row_E]], minlength=len(cases))
    level = np.bincount(row_E[score_E == target_C[row_E]], minlength=len(cases)) - 1
    return np.isfinite(target_C) & (above + level / 2 < k)


def _rows(matrix: Any, items: np.ndarray, place: np.ndarray, count: int) -> Any:
    """The rows of `items[place]`, each at its place; other rows are empty."""
    from scipy.sparse import csr_array

    put = csr_array((np.ones(len(place)), (place, items[place])), shape=(count, matrix.shape[0]))
    return put @ matrix


def _last(cases: Cases, distance: int) -> np.ndarray:
    """The item that many places before the end of each history, its first where it is shorter."""
    place = cases.histories.offsets[1:] - np.minimum(distance, cases.histories.lengths)
    found: np.ndarray = cases.histories.values[place].astype(np.int64)
    return found


def _batches(cases: Cases) -> Iterator[Cases]:
    return (cases.take(np.arange(s, min(s + BATCH, len(cases)))) for s in range(0, len(cases), BATCH))
