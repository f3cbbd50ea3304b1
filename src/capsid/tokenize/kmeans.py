"""k-means, distances to its centres that do not depend on the batch, clusters of bounded size, and nearby codes.

Bounded clusters serve ReSID's trees (sizes that differ by at most one), UniRec's codebooks (weights below a cap) and
LETTER's groups of codes (sizes between two bounds). Their assignment is greedy, not optimal: items are assigned in
descending order of regret, the extra cost of their second choice. Knows no items and no ids.
Shapes: N vectors, D dimensions, K centres or codes of a book, L depths, S strongest codes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from capsid.base.randomness import child_seed
from capsid.errors import ConfigError


def kmeans(vectors_ND: np.ndarray, k: int, iterations: int, restarts: int, seed: int) -> np.ndarray:
    """The centres of the best of several runs of faiss' k-means. Shape: (k, d)."""
    options = {"nredo": restarts, "max_points_per_centroid": 4096}
    return faiss_kmeans(vectors_ND, k, iterations, child_seed(seed, "kmeans"), **options)


def faiss_kmeans(vectors_ND: np.ndarray, k: int, iterations: int, seed: int, **options: Any) -> np.ndarray:
    """The centres of faiss' k-means, which takes further options. Shape: (k, d)."""
    import faiss

    width = vectors_ND.shape[1]
    means = faiss.Kmeans(width, k, niter=iterations, seed=seed % (2**31), min_points_per_centroid=1, **options)
    means.train(np.ascontiguousarray(vectors_ND, dtype=np.float32))
    return np.asarray(means.centroids, dtype=np.float32)


def padded_blocks(rows_NI: np.ndarray, size: int) -> Iterator[tuple[torch.Tensor, int]]:
    """Rows in blocks of one shape, so that what is made of a row does not depend on its company, and how many of each
    are real. The next block overwrites the last one."""
    padded = np.zeros((size, rows_NI.shape[1]), dtype=np.float32)
    for start in range(0, len(rows_NI), size):
        part = rows_NI[start : start + size]
        padded[: len(part)] = part
        yield torch.as_tensor(padded), len(part)


def nearest(vectors_ND: np.ndarray, centres_KD: np.ndarray) -> np.ndarray:
    """Nearest centre of every vector."""
    parts = [found_BK.argmin(1) for found_BK in distances(vectors_ND, centres_KD)]
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def squared_distances(vectors_ND: np.ndarray, centres_KD: np.ndarray) -> np.ndarray:
    """Squared distances to all centres; rounding may take them slightly below 0. Shape: (vectors, centres)."""
    nothing = np.zeros((0, len(centres_KD)), dtype=np.float32)
    own_N1 = (vectors_ND**2).sum(1, keepdims=True)
    return own_N1 + np.concatenate([nothing, *distances(vectors_ND, centres_KD)])


def distances(vectors_ND: np.ndarray, centres_KD: np.ndarray) -> Iterator[np.ndarray]:
    """Squared distances to all centres minus the vector's squared norm, block by block. A vector gets the same
    distances alone and in a batch: all blocks have the same shape, and vectors are columns of the product. As rows, or
    multiplied by NumPy's BLAS, some places of a block are rounded differently from others on some processors."""
    # Copies, because torch does not take arrays that are mapped read-only.
    centres = torch.as_tensor(np.array(centres_KD))
    norms_K1 = centres.square().sum(1, keepdim=True)
    for padded, rows in padded_blocks(vectors_ND, 1024):
        yield (norms_K1 - 2 * (centres @ padded.T)).T.contiguous()[:rows].numpy()


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
        labels_N, centres_KD = found_N, class_means(vectors_ND, found_N, centres_KD)
    assert labels_N is not None
    return Clusters(labels_N, centres_KD)


def class_means(vectors_ND: np.ndarray, labels_N: np.ndarray, before_KD: np.ndarray) -> np.ndarray:
    """The mean of the vectors of every label; a label without vectors keeps what it had. Shape: (K, d)."""
    sums_KD = np.zeros(before_KD.shape, dtype=np.float64)
    np.add.at(sums_KD, labels_N, vectors_ND)
    sizes_K1 = np.bincount(labels_N, minlength=len(before_KD))[:, None]
    return np.where(sizes_K1 > 0, sums_KD / np.maximum(sizes_K1, 1), before_KD).astype(np.float32)


def nearby_codes(vectors_ND: np.ndarray, books: Sequence[np.ndarray], strongest: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes and weights of shape (vectors, depths, strongest), the nearest first; code 0 with weight 0 is padding."""
    shape = (len(vectors_ND), len(books), strongest)
    codes_NLS, weights_NLS = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.float32)
    residual_ND = np.array(vectors_ND, dtype=np.float32)
    for depth, book_KD in enumerate(books):
        kept, spacing, start = min(strongest, len(book_KD)), _spacing(book_KD), 0
        for own_BK in distances(residual_ND, book_KD):
            rows = slice(start, start + len(own_BK))
            codes_BS = np.argsort(own_BK, axis=1, kind="stable")[:, :kept]
            near_BS = np.take_along_axis(own_BK, codes_BS, axis=1)
            codes_NLS[rows, depth, :kept] = codes_BS
            # Relative to the nearest: the vector's own squared norm, which `distances` leaves out, cancels.
            weights_NLS[rows, depth, :kept] = np.exp((near_BS[:, :1] - near_BS) / spacing)
            start += len(own_BK)
        residual_ND -= book_KD[codes_NLS[:, depth, 0]]
    return codes_NLS, weights_NLS


def _spacing(book_KD: np.ndarray) -> float:
    """Mean squared distance between a centre and its nearest neighbour; 1 where there is none."""
    if len(book_KD) < 2:
        return 1.0
    apart_KK = squared_distances(book_KD, book_KD)
    np.fill_diagonal(apart_KK, np.inf)
    return max(float(apart_KK.min(1).mean()), float(np.finfo(np.float32).tiny))
