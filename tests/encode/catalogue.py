"""Small item tables with planted groups, and ways to disturb them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.ragged import Ragged

GROUPS = (
    ("nail polish lacquer red", "Opi", ["Beauty", "Nails"]),
    ("shampoo for dry curly hair", "Suave", ["Beauty", "Hair"]),
    ("running shoe light mesh", "Asics", ["Sports", "Shoes"]),
    ("wooden puzzle animals", "Melissa", ["Toys", "Puzzles"]),
)
COLD = 2  # the last items of the catalogue occur in no history


def make_table(items: int = 24, users: int = 60, seed: int = 0) -> ItemTable:
    """Item i belongs to group i mod 4; users stay within a group."""
    rng = np.random.default_rng(seed)
    kinds = [GROUPS[i % len(GROUPS)] for i in range(items)]
    attributes = pl.DataFrame(
        {
            "title": [f"{title} no {i}" for i, (title, _, _) in enumerate(kinds)],
            "brand": [None if i % 5 == 0 else brand for i, (_, brand, _) in enumerate(kinds)],
            "categories": [categories for _, _, categories in kinds],
            "price": [float(i) for i in range(items)],
        }
    )
    warm = np.arange(items - COLD)
    rows = []
    for user in range(users):
        own = warm[warm % len(GROUPS) == user % len(GROUPS)]
        rows.append(rng.choice(own, size=min(4, len(own)), replace=False))
    ids = Vocabulary(f"item-{i}" for i in range(items))
    return table_of(ids, attributes, Ragged.from_rows(rows))


def table_of(items: Vocabulary, attributes: pl.DataFrame, sequences: Ragged) -> ItemTable:
    counts = np.bincount(sequences.values, minlength=len(items)).astype(np.int64)
    return ItemTable(items, attributes, counts, sequences, ("title", "brand", "categories"))


def permuted(table: ItemTable, order: np.ndarray) -> ItemTable:
    """The same facts with row order[i] of the old table as row i."""
    new_number = np.argsort(order)
    sequences = Ragged(new_number[table.sequences.values], table.sequences.offsets)
    return replace(
        table,
        items=Vocabulary(table.items.ids(order)),
        attributes=table.attributes[order.tolist()],
        counts=table.counts[order],
        sequences=sequences,
    )


def some(table: ItemTable, rows: Sequence[int]) -> ItemTable:
    """Some of the items, as if nobody had taken them yet."""
    attributes = table.attributes[list(rows)]
    return ItemTable.new_items(Vocabulary(table.items.ids(rows)), attributes, table.text_fields)


def new_items() -> ItemTable:
    """Items that the catalogue does not have, one of each group."""
    attributes = pl.DataFrame(
        {
            "title": [f"{title} brand new" for title, _, _ in GROUPS],
            "brand": [brand for _, brand, _ in GROUPS],
            "categories": [categories for _, _, categories in GROUPS],
        }
    )
    return ItemTable.new_items(Vocabulary(f"new-{i}" for i in range(len(GROUPS))), attributes, ("title",))
