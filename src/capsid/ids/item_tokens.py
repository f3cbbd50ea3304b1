"""Tokens of the items of a catalogue, looked up for the items asked about.

A `Ragged` holds them all. `TrieRows` reads them from the trie, so that a process that maps the trie holds none;
`Beside` joins several of an item's ids. Costs grow with the items asked about, not with the catalogue.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from capsid.ids.layout import END, TokenLayout
from capsid.ids.trie import Trie
from capsid.ragged import Ragged


class ItemRows(Protocol):
    """One row of tokens per item."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> np.ndarray:
        return self.take(np.array([row])).values

    def take(self, rows: np.ndarray) -> Ragged:
        """The rows of these items, in this order."""

    def lengths_of(self, rows: np.ndarray) -> np.ndarray:
        """The lengths of their rows."""
        return self.take(rows).lengths


@dataclass(frozen=True, eq=False)
class TrieRows(ItemRows):
    """The prefix-free tokens of items, read from their trie."""

    trie: Trie

    def __len__(self) -> int:
        return len(self.trie)

    def take(self, rows: np.ndarray) -> Ragged:
        return self.trie.rows_of(rows)


@dataclass(frozen=True, eq=False)
class Unmerged(ItemRows):
    """The tokens of items before merging, from their prefix-free tokens."""

    merged: ItemRows
    layout: TokenLayout

    def __len__(self) -> int:
        return len(self.merged)

    def take(self, rows: np.ndarray) -> Ragged:
        tokens = self.merged.take(rows)
        tokens = self.layout.merges.undo(tokens.keep(tokens.values != END))
        # Deeper codes have larger tokens. Merges in any order leave the parts of an item out of order.
        return Ragged(tokens.values[np.lexsort([tokens.values, tokens.row_numbers])], tokens.offsets)


@dataclass(frozen=True, eq=False)
class Beside(ItemRows):
    """The tokens of an item's ids, one id after the other."""

    ids: tuple[ItemRows, ...]

    def __len__(self) -> int:
        return len(self.ids[0])

    def take(self, rows: np.ndarray) -> Ragged:
        return functools.reduce(Ragged.beside, (own.take(rows) for own in self.ids))
