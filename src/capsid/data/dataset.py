"""A dataset: every user's items in time order, and the attributes of every item.

External ids are converted to numbers at the boundary (`Vocabulary`). Knows no files and no learning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from capsid.base.storage.mapped_arrays import BLOCK, blocks_of, counted, int64_blocks
from capsid.base.vocabulary import Vocabulary
from capsid.data.columns import to_polars
from capsid.data.findings import Block, Findings
from capsid.data.frames import Histories, join_tables
from capsid.errors import DataError
from capsid.ragged import Ragged

# Titles are used as text only if nearly all items have one: otherwise having a title would leak popularity
# (Amazon Sports: 53 % have one). Keywords replace them.
TITLE_COVERAGE = 0.9
# The order of interactions with equal times, as they were written (`capsid.data.ties` knows another one).
FILE_ORDER = "file"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Interactions and items. `sequences` row u holds user u's item numbers in time order.

    It knows times, or days, or only an order. `days`: `times` are days since each user's first interaction, so they
    order the items of one user and cannot be compared between users. `order` says how equal times are ordered.
    """

    name: str
    users: Vocabulary
    items: Vocabulary
    sequences: Ragged
    attributes: pl.DataFrame
    times: np.ndarray | None = None
    text_fields: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    days: bool = False
    order: str = FILE_ORDER

    def __post_init__(self) -> None:
        if len(self.sequences) != len(self.users):
            raise DataError(f"{len(self.users)} users but {len(self.sequences)} sequences")
        if self.attributes.height != len(self.items):
            raise DataError(f"{len(self.items)} items but {self.attributes.height} rows of attributes")
        if self.times is not None and len(self.times) != len(self.sequences.values):
            raise DataError("times and interactions differ in number")
        if not self.text_fields:
            object.__setattr__(self, "text_fields", choose_text_fields(self.attributes))

    @classmethod
    def from_frames(
        cls,
        interactions: Any,
        items: Any = None,
        *,
        name: str = "data",
        user: str | None = None,
        item: str | None = None,
        timestamp: str | None = None,
        rating: str | None = None,
        min_rating: float | None = None,
        text_fields: tuple[str, ...] = (),
    ) -> Dataset:
        """From tables (polars, pandas, Arrow): `interactions` with user, item and timestamp; `items` with attributes.

        Columns are found by common names (user_id, item_id, ts, ...) or by the names given here. Rows with equal times
        keep their order. Without `items` the catalogue consists of the items in the interactions.
        """
        findings, given = Findings(), {"user": user, "item": item, "timestamp": timestamp, "rating": rating}
        histories = join_tables(
            [Block("interactions", 1, to_polars(interactions))],
            None if items is None else Block("items", 1, to_polars(items)),
            findings=findings,
            columns={what: column for what, column in given.items() if column is not None},
            min_rating=min_rating,
        )
        findings.raise_first()
        note = {} if min_rating is None else {"min_rating": str(min_rating)}
        return cls.of(histories, name=name, text_fields=tuple(text_fields), provenance=note)

    @classmethod
    def of(
        cls,
        histories: Histories,
        *,
        name: str,
        text_fields: tuple[str, ...] = (),
        provenance: Mapping[str, str] | None = None,
    ) -> Dataset:
        return cls(name=name, **vars(histories), text_fields=text_fields, provenance=provenance or {})

    @property
    def interactions(self) -> int:
        return len(self.sequences.values)

    @cached_property
    def fingerprint(self) -> str:
        """Changes if any id, sequence, time or attribute changes, so also with the order of ties.

        Days do not count: they decide the order of ties and nothing else.
        """
        digest = hashlib.sha256()
        for ids in (self.users, self.items):
            for part in blocks_of(len(ids)):
                digest.update(("\n" * (part.start > 0) + "\n".join(ids[part])).encode())
            digest.update(b"\0")
        for numbers in (self.sequences.values, self.sequences.offsets):
            for block in int64_blocks(numbers):
                digest.update(block)
        for part in blocks_of(0 if self.times is None or self.days else len(self.times)):
            digest.update(np.ascontiguousarray(self.times[part], dtype=np.float64).data)  # type: ignore[index]
        for text in _json_of(self.attributes):
            digest.update(text.encode())
        digest.update("|".join(self.text_fields).encode())
        return digest.hexdigest()[:16]

    def title(self, number: int) -> str:
        """The display title of an item: its title, else its keywords, else its id."""
        return item_title(self.items, self.attributes, number)

    def describe(self) -> dict[str, object]:
        lengths = self.sequences.lengths
        counts = counted(self.sequences.values, len(self.items))
        return {
            "name": self.name,
            "users": len(self.users),
            "items": len(self.items),
            "interactions": self.interactions,
            "sequence_length_min": int(lengths.min()) if len(lengths) else 0,
            "sequence_length_mean": float(lengths.mean()) if len(lengths) else 0.0,
            "sequence_length_max": int(lengths.max()) if len(lengths) else 0,
            "item_count_min": int(counts.min()) if len(counts) else 0,
            "item_count_median": float(np.median(counts)) if len(counts) else 0.0,
            "times": "none" if self.times is None else "days" if self.days else "times",
            "order": self.order,
            "text_fields": list(self.text_fields),
            "attributes": {c: round(coverage(self.attributes, c), 4) for c in self.attributes.columns},
            "fingerprint": self.fingerprint,
        }


def _json_of(frame: pl.DataFrame) -> Iterator[str]:
    """The text of `frame.write_json()`, some rows at a time."""
    if frame.height <= BLOCK:
        yield frame.write_json()
        return
    for part in blocks_of(frame.height):
        rows = frame[part].write_json()
        yield ("," if part.start else "[") + rows[1:-1]
    yield "]"


def item_title(items: Vocabulary, attributes: pl.DataFrame, number: int) -> str:
    """An item's title, else its keywords, else its id."""
    for column in ("title", "keywords"):
        value = attributes[column][int(number)] if column in attributes.columns else None
        text = " ".join(map(str, value)) if isinstance(value, pl.Series) else str("" if value is None else value)
        # Always on one line.
        if shown := " ".join(text.split()):
            return shown
    return items[int(number)]


def item_titles(items: Vocabulary, attributes: pl.DataFrame) -> list[str]:
    """The titles of all items, as `item_title` gives them."""
    titles = list(items)
    for column in ("keywords", "title"):
        if column in attributes.columns:
            titles = [str(text) if text else title for text, title in zip(attributes[column].to_list(), titles)]
    return titles


def coverage(frame: pl.DataFrame, column: str) -> float:
    """Share of rows in which the column has a value."""
    if column not in frame.columns or frame.height == 0:
        return 0.0
    series = frame[column]
    filled = series.is_not_null()
    if series.dtype == pl.String:
        filled &= series.str.strip_chars() != ""
    elif isinstance(series.dtype, pl.List):
        filled &= series.list.len() > 0
    return int(filled.fill_null(False).sum()) / frame.height


def choose_text_fields(attributes: pl.DataFrame) -> tuple[str, ...]:
    """One template for all items: title (or keywords) + brand + categories, or all text columns if there are none."""
    head = ["title"] if coverage(attributes, "title") >= TITLE_COVERAGE else ["keywords"]
    if coverage(attributes, head[0]) == 0.0:
        head = ["title"]
    known = [c for c in (*head, "brand", "categories") if coverage(attributes, c) > 0]
    if known:
        return tuple(known)
    return tuple(c for c in attributes.columns if attributes[c].dtype == pl.String and coverage(attributes, c) > 0)
