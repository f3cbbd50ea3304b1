"""k-means, and distances to its centres that do not depend on the batch. Knows no items and no codes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from capsid.base.randomness import child_seed


def kmeans(vectors_ND: np.ndarray, k: int, iterations: int, restarts: int, seed: int) -> np.ndarray:
    """The centres of the best of several runs of faiss' k-means. Shape: (k, d)."""
    import faiss

    means = faiss.Kmeans(
        vectors_ND.shape[1],
        k,
        niter=iterations,
        nredo=restarts,
        seed=child_seed(seed, "kmeans") % (2**31),
        min_points_per_centroid=1,
        max_points_per_centroid=4096,
    )
    means.train(np.ascontiguousarray(vectors_ND, dtype=np.float32))
    return np.asarray(means.centroids, dtype=np.float32)


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
    """Squared distances to all centres minus the vector's squared norm, block by block.

    A vector gets the same distances alone and in a batch: all blocks have the same shape, and vectors are columns of
    the product. As rows, or multiplied by NumPy's BLAS, some places of a block are rounded differently from others on
    some processors.
    """
    # Copies, because torch does not take arrays that are mapped read-only.
    centres = torch.as_tensor(np.array(centres_KD))
    norms_K1 = centres.square().sum(1, keepdim=True)
    block = 1024
    padded = torch.zeros(block, vectors_ND.shape[1])
    for start in range(0, len(vectors_ND), block):
        part = vectors_ND[start : start + block]
        padded[: len(part)] = torch.as_tensor(np.array(part))
        yield (norms_K1 - 2 * (centres @ padded.T)).T.contiguous()[: len(part)].numpy()
