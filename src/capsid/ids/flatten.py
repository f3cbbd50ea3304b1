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
    items = histories.last(last)
    tokens = ids.closed.take(items.values)
    lengths = items.sums(tokens.lengths)
    width = max(int(lengths.max()) if len(lengths) else 0, 1)
    there = np.arange(width)[None, :] < lengths[:, None]
    batch = [np.full((len(histories), width), PAD, dtype=np.int64) for _ in range(3)]
    batch[0][there] = tokens.values
    batch[1][there] = np.repeat(items.positions, tokens.lengths)
    batch[2][there] = tokens.positions
    return TokenBatch(batch[0], batch[1], batch[2], lengths, items.lengths)
