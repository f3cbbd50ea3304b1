"""The nearest items by cosine, with faiss: exactly, or in a large catalogue among the clusters that are nearest.

Knows vectors and item numbers. Shapes: N items, Q items that are asked about, K nearest items, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from capsid.errors import ConfigError
from capsid.ids.neighbours import Neighbours

# Comparing every item with every other takes a minute of processor time at this size, and grows with its square.
EXACT_UP_TO = 100_000
# Vectors that clusters are made from, for each cluster; faiss advises 39 to 256.
PER_CLUSTER = 64
CLUSTERS_SEARCHED = 32


def neighbours_of(vectors_ND: np.ndarray | None, k: int) -> Neighbours:
    """The k nearest items of every item of a catalogue."""
    vectors_ND = _given(vectors_ND)
    return Neighbours.of(*nearest_items(vectors_ND, np.arange(len(vectors_ND)), k))


def grown_neighbours(near: Neighbours | None, vectors_ND: np.ndarray | None) -> Neighbours | None:
    """Neighbours in a catalogue whose last items are new: as many for a new item as an old one has at the most."""
    if near is None:
        return None
    vectors_ND = _given(vectors_ND)
    most = int(near.items.lengths.max(initial=1))
    return near.grown(*nearest_items(vectors_ND, np.arange(len(near), len(vectors_ND)), most))


def nearest_items(
    vectors_ND: np.ndarray, asked_Q: np.ndarray, k: int, *, exact_up_to: int = EXACT_UP_TO
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest items of every item asked about, without itself, and their cosines; -1 where there are fewer.

    The answer is approximate if more pairs would have to be compared than those of `exact_up_to` items. Shapes: (Q, K)
    each.
    """
    import faiss

    unit_ND = _unit(vectors_ND)
    count, width = unit_ND.shape
    index: Any = faiss.IndexFlatIP(width)
    # A few items, such as new ones, are compared with all others in a catalogue of any size.
    if len(asked_Q) * count > exact_up_to**2:
        clusters = int(4 * count**0.5)
        index = faiss.IndexIVFFlat(index, width, clusters, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = min(CLUSTERS_SEARCHED, clusters)
        index.train(unit_ND[:: max(1, count // (PER_CLUSTER * clusters))])
    index.add(unit_ND)
    # One more, because an item is its own nearest.
    cosines, found = index.search(unit_ND[asked_Q], min(k + 1, count))
    return _without(found, cosines, asked_Q, k)


def _given(vectors_ND: np.ndarray | None) -> np.ndarray:
    if vectors_ND is None:
        raise ConfigError(
            "memory.neighbours needs item vectors, which this recipe does not have",
            hint="set memory.neighbours=0, or an encoder",
        )
    return vectors_ND


def _unit(vectors_ND: np.ndarray) -> np.ndarray:
    vectors_ND = np.ascontiguousarray(vectors_ND, dtype=np.float32)
    return vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=1, keepdims=True), 1e-12)


def _without(
    found_QK: np.ndarray, cosines_QK: np.ndarray, asked_Q: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Drop the item itself, or the last of the others if an item with an equal vector took its place."""
    own_QK = found_QK == asked_Q[:, None]
    own_QK[:, -1] |= ~own_QK.any(1)
    shape = (len(found_QK), max(found_QK.shape[1] - 1, 0))
    return found_QK[~own_QK].reshape(shape)[:, :k], cosines_QK[~own_QK].reshape(shape)[:, :k]
