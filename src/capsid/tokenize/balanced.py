"""Clusters of bounded size: an assignment within capacity, and k-means with it.

One assignment serves ReSID's trees (sizes that differ by at most one), UniRec's codebooks (weights below a cap) and
LETTER's groups of codes (sizes between two bounds). It is greedy, not optimal: items are assigned in descending
order of regret, the extra cost of their second choice. Knows no items and no codes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from capsid.errors import ConfigError
from capsid.tokenize.kmeans import squared_distances


@dataclass(frozen=True, eq=False)
class Clusters:
    """The cluster of every vector and the mean of every cluster; an empty cluster keeps its initial centre."""

    labels_N: np.ndarray
    centres_KD: np.ndarray


def assign(
    costs_NK: np.ndarray, most: float = math.inf, *, least: int = 0, weights_N: np.ndarray | None = None
) -> np.ndarray:
    """Assign rows to clusters so that no load exceeds `most` and every cluster has at least `least` rows.

    The load of a cluster is the sum of its rows' weights, 1 each by default. Each row, in order of regret, takes the
    cheapest cluster with room. A row heavier than `most` gets an empty cluster if there is one. A row that fits
    nowhere, because the free room is scattered, goes to the cluster with the most room. Shape: (rows,).
    """
    costs_NK = np.asarray(costs_NK, dtype=np.float64)
    rows, clusters = costs_NK.shape
    weights = np.ones(rows) if weights_N is None else np.asarray(weights_N, dtype=np.float64)
    if weights.sum() > clusters * most or rows < clusters * least:
        raise ConfigError(
            f"{rows} items of weight {weights.sum():g} do not fit in {clusters} clusters of {least} to {most:g}",
            hint="allow larger or smaller clusters, or change their number",
        )
    labels_N = costs_NK.argmin(1) if rows else np.zeros(0, dtype=np.int64)
    if (np.bincount(labels_N, weights, minlength=clusters) > most).any():
        labels_N = _within(costs_NK, labels_N, weights, most)
    if least:
        _fill(costs_NK, labels_N, least)
    return labels_N


def _within(costs_NK: np.ndarray, nearest_N: np.ndarray, weights_N: np.ndarray, most: float) -> np.ndarray:
    labels_N = nearest_N.copy()
    room_K = np.full(costs_NK.shape[1], most)
    for row in _order(costs_NK, weights_N, most):
        weight, best = weights_N[row], nearest_N[row]
        if weight > room_K[best]:
            fits_K = room_K >= min(weight, most)
            best = np.where(fits_K, costs_NK[row], np.inf).argmin() if fits_K.any() else room_K.argmax()
        labels_N[row] = best
        room_K[best] -= weight
    return labels_N


def _order(costs_NK: np.ndarray, weights_N: np.ndarray, most: float) -> np.ndarray:
    """Rows heavier than any cluster's limit come first, then rows by descending regret."""
    if costs_NK.shape[1] == 1:
        return np.arange(len(costs_NK))
    two_N2 = np.partition(costs_NK, 1, axis=1)[:, :2]
    return np.lexsort([two_N2[:, 0] - two_N2[:, 1], weights_N <= most])


def _fill(costs_NK: np.ndarray, labels_N: np.ndarray, least: int) -> None:
    """Fill every cluster up to `least` rows, in place, with the rows from larger clusters that lose least by moving."""
    sizes_K = np.bincount(labels_N, minlength=costs_NK.shape[1])
    for short in np.flatnonzero(sizes_K < least):
        loss_N = costs_NK[:, short] - costs_NK[np.arange(len(labels_N)), labels_N]
        for row in np.argsort(loss_N, kind="stable"):
            if sizes_K[short] == least:
                break
            if labels_N[row] != short and sizes_K[labels_N[row]] > least:
                sizes_K[labels_N[row]] -= 1
                sizes_K[short] += 1
                labels_N[row] = short


def balanced_kmeans(
    vectors_ND: np.ndarray,
    start_KD: np.ndarray,
    most: float = math.inf,
    *,
    least: int = 0,
    weights_N: np.ndarray | None = None,
    iterations: int = 20,
) -> Clusters:
    """Lloyd's iterations with bounded clusters, until no assignment changes or the iteration limit is reached."""
    labels_N, centres_KD = None, np.asarray(start_KD, dtype=np.float32)
    for _ in range(iterations):
        costs_NK = np.maximum(squared_distances(vectors_ND, centres_KD), 0)
        found_N = assign(costs_NK, most, least=least, weights_N=weights_N)
        if labels_N is not None and np.array_equal(found_N, labels_N):
            break
        labels_N, centres_KD = found_N, _means(vectors_ND, found_N, centres_KD)
    assert labels_N is not None
    return Clusters(labels_N, centres_KD)


def _means(vectors_ND: np.ndarray, labels_N: np.ndarray, before_KD: np.ndarray) -> np.ndarray:
    sums_KD = np.zeros(before_KD.shape, dtype=np.float64)
    np.add.at(sums_KD, labels_N, vectors_ND)
    sizes_K1 = np.bincount(labels_N, minlength=len(before_KD))[:, None]
    return np.where(sizes_K1 > 0, sums_KD / np.maximum(sizes_K1, 1), before_KD).astype(np.float32)
