"""The data that parts are fitted on: one frozen table of the items.

Named blocks of vectors, training counts, attributes and training sequences; never validation or test data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from capsid.base.storage.mapped_arrays import counted
from capsid.base.vocabulary import Vocabulary
from capsid.data.dataset import Dataset
from capsid.errors import DataError, nearest
from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class ItemTable:
    """One row per item. `sequences` holds only training histories; `counts` are item counts in them."""

    items: Vocabulary
    attributes: pl.DataFrame
    counts: np.ndarray
    sequences: Ragged
    text_fields: tuple[str, ...] = ()
    blocks: Mapping[str, np.ndarray] = field(default_factory=dict)
    fingerprint: str = ""

    @classmethod
    def from_training(cls, dataset: Dataset, train: Ragged) -> ItemTable:
        """The whole catalogue, with its training counts and sequences."""
        counts = counted(train.values, len(dataset.items))
        return cls(dataset.items, dataset.attributes, counts, train, dataset.text_fields, {}, dataset.fingerprint)

    @classmethod
    def new_items(cls, items: Vocabulary, attributes: pl.DataFrame, text_fields: tuple[str, ...]) -> ItemTable:
        """A table of items without interactions."""
        nothing = Ragged(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64))
        return cls(items, attributes, np.zeros(len(items), dtype=np.int64), nothing, text_fields)

    def __len__(self) -> int:
        return len(self.items)

    def take(self, rows: np.ndarray) -> ItemTable:
        """Some of the items with their vectors, which are copied; without sequences, which name other items too."""
        blocks = {name: np.asarray(block_ND[rows]) for name, block_ND in self.blocks.items()}
        attributes = self.attributes[rows] if self.attributes.width else self.attributes
        part = ItemTable.new_items(Vocabulary(self.items.ids(rows)), attributes, self.text_fields)
        return replace(part, counts=self.counts[rows], blocks=blocks)

    def with_block(self, name: str, vectors_ND: np.ndarray) -> ItemTable:
        """A copy with one more block of vectors."""
        if len(vectors_ND) != len(self.items):
            raise DataError(f"{len(vectors_ND)} vectors for {len(self.items)} items")
        return replace(self, blocks={**self.blocks, name: vectors_ND})

    def with_blocks(self, blocks: Mapping[str, np.ndarray]) -> ItemTable:
        table = self
        for name, vectors_ND in blocks.items():
            table = table.with_block(name, vectors_ND)
        return table

    def vectors(self, name: str = "item") -> np.ndarray:
        """The block of that name. Shape: (items, d)."""
        if name not in self.blocks:
            raise DataError(f"the item table has no vectors {name!r}", hint=nearest(name, self.blocks))
        return self.blocks[name]
