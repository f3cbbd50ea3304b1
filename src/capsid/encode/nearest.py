"""Which items are alike: the nearest items of every item by cosine, with faiss, and how near they are.

Exactly, or in a large catalogue among the clusters that are nearest. Likeness is exp(SHARPNESS cosine) - 1, so that it
can be added like a count: log(1 + likeness) is proportional to the cosine for one item, and close to that of the most
similar item for a sum. Knows vectors and item numbers. Shapes: N items, Q items that were asked about, K nearest items
of each, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from capsid.errors import ConfigError
from capsid.ragged import Ragged

SHARPNESS = 4.0

_Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The neighbours of every item (one row per item, ascending), and the likeness of each."""

    items: Ragged
    likeness: np.ndarray

    @classmethod
    def of(cls, nearest_NK: np.ndarray, cosines_NK: np.ndarray) -> Neighbours:
        """From the nearest items of every item; no item is its own neighbour, and cosines must be above 0 to count."""
        return _sorted(*_pairs(np.arange(len(nearest_NK)), nearest_NK, cosines_NK), len(nearest_NK))

    def __len__(self) -> int:
        return len(self.items)

    def grown(self, nearest_QK: np.ndarray, cosines_QK: np.ndarray) -> Neighbours:
        """With new items, whose nearest items (old or new) are given. A new item also becomes a neighbour of the old
        items near it, so that histories which end in those lead to it. Otherwise old rows do not change."""
        first, count = len(self), len(self) + len(nearest_QK)
        new, near, likeness = _pairs(np.arange(first, count), nearest_QK, cosines_QK)
        back = near < first
        return _sorted(
            np.concatenate([self.items.row_numbers, new, near[back]]),
            np.concatenate([self.items.values, near, new[back]]),
            np.concatenate([self.likeness, likeness, likeness[back]]),
            count,
        )

    def state(self) -> dict[str, np.ndarray]:
        return {"items": self.items.values, "offsets": self.items.offsets, "likeness": self.likeness}


def _pairs(asked_Q: np.ndarray, nearest_QK: np.ndarray, cosines_QK: np.ndarray) -> _Pairs:
    """Items, neighbours and their likeness, pair by pair; -1 marks a missing neighbour."""
    kept_QK = (nearest_QK >= 0) & (nearest_QK != asked_Q[:, None]) & (cosines_QK > 0)
    item = np.broadcast_to(asked_Q[:, None], nearest_QK.shape)[kept_QK]
    # Rounding can make the cosine of equal vectors a little larger than 1.
    likeness = np.expm1(SHARPNESS * np.minimum(cosines_QK[kept_QK], 1.0)).astype(np.float32)
    return item, nearest_QK[kept_QK], likeness


def _sorted(item: np.ndarray, neighbour: np.ndarray, likeness: np.ndarray, count: int) -> Neighbours:
    order = np.lexsort((neighbour, item))
    rows = Ragged.from_lengths(neighbour[order].astype(np.int32), np.bincount(item, minlength=count))
    return Neighbours(rows, likeness[order])


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
    """The k nearest items of every item asked about, without itself, and their cosines; -1 where there are fewer. The
    answer is approximate if more pairs would have to be compared than those of `exact_up_to` items. Shapes: (Q, K)
    each."""
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
