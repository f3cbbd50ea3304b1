"""A dataset: every user's items in time order, and the attributes of every item; and its k-core.

External ids are converted to numbers at the boundary (`Vocabulary`). The k-core repeatedly removes users and items with
fewer than k interactions until all have at least k. Interactions may be in memory or come in blocks: only one count per
user and per item is held. Knows no files and no learning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from capsid.base.storage.mapped_arrays import BLOCK, blocks_of, counted, int64_blocks
from capsid.base.vocabulary import Vocabulary
from capsid.data.columns import to_polars
from capsid.data.findings import Block, Findings
from capsid.data.frames import Histories, join_tables
from capsid.errors import ConfigError, DataError
from capsid.progress import Progress, silent
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


# The users and the items of some interactions.
Pairs = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Core:
    """Some users and some items, as masks, and with them the interactions between them."""

    users_U: np.ndarray
    items_I: np.ndarray

    def keeps(self, users_B: np.ndarray, items_B: np.ndarray) -> np.ndarray:
        return self.users_U[users_B] & self.items_I[items_B]

    def counts(self, blocks: Iterable[Pairs]) -> tuple[np.ndarray, np.ndarray]:
        """How many of the interactions that remain each user and each item has."""
        counts_U, counts_I = (np.zeros(len(mask), dtype=np.int64) for mask in (self.users_U, self.items_I))
        for users_B, items_B in blocks:
            kept_B = self.keeps(users_B, items_B)
            np.add.at(counts_U, users_B[kept_B], 1)
            np.add.at(counts_I, items_B[kept_B], 1)
        return counts_U, counts_I


def k_core(dataset: Dataset, k: int = 5) -> Dataset:
    """The largest subset in which every user and every item has at least k interactions; order is kept."""
    items_E, users_E = dataset.sequences.values, dataset.sequences.row_numbers
    core = find_core(lambda: [(users_E, items_E)], (len(dataset.users), len(dataset.items)), k, dataset.name)
    kept = restrict(dataset, core.keeps(users_E, items_E), core.users_U, core.items_I)
    return replace(kept, provenance=core_provenance(dataset.provenance, k))


def find_core(
    blocks: Callable[[], Iterable[Pairs]], sizes: tuple[int, int], k: int, name: str, progress: Progress = silent
) -> Core:
    """Count in passes over all blocks until a pass removes nobody. `sizes`: of users and of items.

    Counts only fall, so who is in the core at the end decides which interactions are: no mask of them is held.
    """
    check_k(k)
    core, passes = everything(sizes), 0
    while True:
        counts_U, counts_I = core.counts(blocks())
        enough_U, enough_I = counts_U >= k, counts_I >= k
        same = np.array_equal(enough_U, core.users_U) and np.array_equal(enough_I, core.items_I)
        core, passes = Core(enough_U, enough_I), passes + 1
        progress.update(f"{k}-core: {enough_U.sum():,} users and {enough_I.sum():,} items after pass {passes}")
        if same:
            break
    if not core.users_U.any():
        raise DataError(f"the {k}-core of {name!r} is empty", hint="choose a smaller k")
    return core


def everything(sizes: tuple[int, int]) -> Core:
    """All users and items."""
    return Core(*(np.ones(size, dtype=bool) for size in sizes))


def check_k(k: int) -> None:
    """Refuse a k below 1."""
    if k < 1:
        raise ConfigError(f"k of the k-core must be at least 1, got {k}", hint="such as --k-core 5")


def core_provenance(provenance: Mapping[str, str], k: int) -> dict[str, str]:
    """What a k-core says about its origin."""
    return {**provenance, "k_core": str(k)}


def restrict(dataset: Dataset, interactions_E: np.ndarray, users_U: np.ndarray, items_I: np.ndarray) -> Dataset:
    """The chosen interactions, users and items (three masks) with new numbers in the old order."""
    new_number_I = np.cumsum(items_I) - 1
    kept = dataset.sequences.keep(interactions_E)
    values = new_number_I[kept.values].astype(kept.values.dtype)
    return replace(
        dataset,
        users=Vocabulary(dataset.users.ids(np.flatnonzero(users_U))),
        items=Vocabulary(dataset.items.ids(np.flatnonzero(items_I))),
        sequences=Ragged.from_lengths(values, kept.lengths[users_U]),
        attributes=dataset.attributes.filter(items_I),
        times=None if dataset.times is None else dataset.times[interactions_E],
    )
