"""Training histories for encoders that learn from sequences: cut into pieces, with items numbered in id order.

Knows no network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capsid.data.augment import training_pieces
from capsid.data.item_table import ItemTable
from capsid.errors import DataError
from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class Histories:
    """Pieces of two or more items. Number n of a piece is row `seen[n]` of the item table."""

    pieces: Ragged
    seen: np.ndarray


def numbered_histories(table: ItemTable, history: int) -> Histories:
    """The table's training sequences in pieces of at most history + 1 items; an error if none has two items."""
    pieces = training_pieces(table.sequences, history)
    if not len(pieces):
        raise DataError(
            "no training history has two items",
            hint="vectors from sequences need users with two or more training items; use text or attributes",
        )
    seen = np.unique(pieces.values)
    # In id order: an item's vector must not depend on its position in the catalogue.
    seen = seen[np.argsort(np.array(table.items.ids(seen), dtype=np.str_))]
    number_N = np.full(len(table), -1, dtype=np.int64)
    number_N[seen] = np.arange(len(seen))
    return Histories(Ragged(number_N[pieces.values], pieces.offsets), seen)
