"""How histories become token sequences: item by item, each token with its item's place and its own depth.

NumPy only. A method that segments histories in context (ActionPiece) replaces this step, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capsid.ids.layout import PAD
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Padded token sequences, padding at the end. `places` count items from 0, `depths` tokens inside an item."""

    tokens_BL: np.ndarray
    places_BL: np.ndarray
    depths_BL: np.ndarray
    lengths_B: np.ndarray
    items_B: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths_B)


def flatten(ids: SemanticIds, histories: Ragged, *, last: int) -> TokenBatch:
    """Tokens of the last `last` items of every history (row of item numbers)."""
    kept = np.minimum(histories.lengths, last)
    starts = histories.offsets[1:] - kept
    offsets = np.concatenate([[0], np.cumsum(kept)])
    items = histories.values[np.repeat(starts - offsets[:-1], kept) + np.arange(offsets[-1])]
    tokens = ids.closed.take(items)
    sizes = tokens.lengths
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], kept)
    lengths = np.diff(np.concatenate([[0], np.cumsum(sizes)])[offsets])
    width = max(int(lengths.max()) if len(lengths) else 0, 1)
    there = np.arange(width)[None, :] < lengths[:, None]
    batch = [np.full((len(histories), width), PAD, dtype=np.int64) for _ in range(3)]
    batch[0][there] = tokens.values
    batch[1][there] = np.repeat(place, sizes)
    batch[2][there] = np.arange(len(tokens.values)) - np.repeat(tokens.offsets[:-1], sizes)
    return TokenBatch(batch[0], batch[1], batch[2], lengths, kept)
