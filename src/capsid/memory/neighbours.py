"""Which items are alike: the nearest items of every item, and how near they are.

Likeness is exp(SHARPNESS cosine) - 1, so that it can be added like a count: log(1 + likeness) is proportional to the
cosine for one item, and close to that of the most similar item for a sum. Does not know vectors: cosines are given.
NumPy only. Shapes: Q items that were asked about, K nearest items of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
        """With new items, whose nearest items (old or new) are given.

        A new item also becomes a neighbour of the old items near it, so that histories which end in those lead to it.
        Otherwise old rows do not change.
        """
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
        """Arrays by name."""
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
