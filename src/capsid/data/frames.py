"""Turns two tables into numbered histories: `interactions` (user, item, timestamp) and optionally `items`.

Ids become strings. The sort by time is stable, so row order breaks ties. Knows frames, not files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from capsid.data.columns import as_text_ids, find_column, item_attributes, sortable_times
from capsid.data.findings import Findings
from capsid.errors import DataError
from capsid.ragged import Ragged
from capsid.vocabulary import Vocabulary

TIMES_HINT = "use seconds since 1970, 2024-05-31 18:00:00 or 31.05.2024, and one order of day and month throughout"


@dataclass(frozen=True, eq=False)
class Histories:
    """The content of the two tables: users, items with attributes, and every user's items in time order with times."""

    users: Vocabulary
    items: Vocabulary
    sequences: Ragged
    attributes: pl.DataFrame
    times: np.ndarray


def join_tables(
    interactions: pl.DataFrame,
    items: pl.DataFrame | None,
    *,
    findings: Findings,
    files: tuple[str, str] = ("interactions", "items"),
    columns: Mapping[str, str] | None = None,
    min_rating: float | None = None,
) -> Histories:
    """Everything readable; problems go to `findings`. `columns` names the user, item, timestamp or rating column."""
    events = _events(interactions, files[0], columns or {}, min_rating, findings)
    item_ids, attributes = _catalogue(items, files[1], columns or {}, findings)
    if items is None:
        item_ids = first_seen(events["item"])
        attributes = pl.DataFrame({"title": pl.Series([None] * len(item_ids), dtype=pl.String)})
    else:
        events = _known_only(events, item_ids, files, findings)
    users, sequences, times = group_events(events, item_ids)
    return Histories(users, Vocabulary(item_ids), sequences, attributes, times)


def group_events(events: pl.DataFrame, item_ids: list[str]) -> tuple[Vocabulary, Ragged, np.ndarray]:
    """From rows (user, item, timestamp, none null): users by first row, their items in time order, and the times."""
    users = first_seen(events["user"])
    users_E, items_E = _numbers(events["user"], users), _numbers(events["item"], item_ids).astype(np.int32)
    times_E = events["timestamp"].to_numpy()
    # lexsort is stable, so rows of one user with equal times keep their order.
    order = np.lexsort((times_E, users_E))
    sequences = Ragged.from_lengths(items_E[order], np.bincount(users_E, minlength=len(users)))
    return Vocabulary(users), sequences, times_E[order]


def first_seen(ids: pl.Series) -> list[str]:
    """The distinct ids in order of first appearance."""
    return ids.unique(maintain_order=True).to_list()


def _numbers(ids: pl.Series, known: list[str]) -> np.ndarray:
    """The index of every id in `known`."""
    table = pl.DataFrame({"id": pl.Series(known, dtype=pl.String), "number": np.arange(len(known), dtype=np.int64)})
    return pl.DataFrame({"id": ids}).join(table, on="id", how="left", maintain_order="left")["number"].to_numpy()


def _events(
    frame: pl.DataFrame, file: str, columns: Mapping[str, str], min_rating: float | None, findings: Findings
) -> pl.DataFrame:
    user, item, time = (find_column(frame, what, file, columns) for what in ("user", "item", "timestamp"))
    events = pl.DataFrame(
        {
            "row": np.arange(1, frame.height + 1),
            "user": as_text_ids(frame[user], file),
            "item": as_text_ids(frame[item], file),
            "timestamp": sortable_times(frame[time], file),
        }
    )
    if min_rating is not None:
        given = frame[find_column(frame, "rating", file, columns)]
        rating = given.cast(pl.Float64, strict=False)
        for row in (rating.is_null() & given.is_not_null() & (given.cast(pl.String) != "")).arg_true().to_list():
            where = f"{file} row {row + 1}"
            findings.error("mixed-types", where, f"the rating {given[row]!r} is not a number", "write ratings as 4.5")
        events = events.filter((rating >= min_rating).fill_null(False))
        if frame.height and not events.height:
            raise DataError(f"{file}: no rating is {min_rating} or more", hint="choose a smaller --min-rating")
    # A blank line of a CSV is a row without any value.
    events = events.filter(~pl.all_horizontal(pl.col("user", "item", "timestamp").is_null()))
    gaps = events.select(gap=pl.any_horizontal(pl.all().is_null()))["gap"]
    for row in events.filter(gaps).iter_rows(named=True):
        _note_gap(row, {"user": frame[user], "item": frame[item], "timestamp": frame[time]}, file, findings)
    events = events.filter(~gaps)
    if not events.height and not findings.errors:
        hint = "every row needs a user, an item and a timestamp"
        findings.error("no-interactions", file, "the table holds no interactions", hint)
    return events


def _note_gap(row: Mapping[str, Any], given: Mapping[str, pl.Series], file: str, findings: Findings) -> None:
    """Report which values of a row are missing or cannot be read."""
    told, hint = [], "every row needs a user, an item and a timestamp"
    for what, column in given.items():
        value = column[row["row"] - 1]
        if row[what] is not None:
            continue
        told.append(f"{what} is missing" if value in (None, "") else f"{what} {value!r:.60} cannot be read")
        if what == "timestamp":
            hint = TIMES_HINT
    findings.error("missing-value", f"{file} row {row['row']}", ", ".join(told), hint)


def _catalogue(
    frame: pl.DataFrame | None, file: str, columns: Mapping[str, str], findings: Findings
) -> tuple[list[str], pl.DataFrame]:
    if frame is None:
        return [], pl.DataFrame()
    # The items table may use another column name than the interactions, so the given name need not exist here.
    column = find_column(frame, "item", file, columns if columns.get("item") in frame.columns else {})
    ids = as_text_ids(frame[column], file)
    first = ids.is_first_distinct() & ids.is_not_null()
    for row in (~first).arg_true().to_list():
        where = f"{file} row {row + 1}"
        if ids[row] is None:
            findings.error("missing-value", where, "the item's id is missing", "give every item an id, or drop the row")
        else:
            findings.error("duplicate-id", where, f"item {ids[row]!r} occurs twice", "keep one row per item")
    rest = frame.drop(column)
    if rest.width:
        attributes = item_attributes(rest, file, findings).filter(first)
    else:  # a frame without columns has no rows either
        attributes = pl.DataFrame({"title": pl.Series([None] * int(first.sum()), dtype=pl.String)})
    return ids.filter(first).to_list(), attributes


def _known_only(events: pl.DataFrame, item_ids: list[str], files: tuple[str, str], findings: Findings) -> pl.DataFrame:
    known = events["item"].is_in(pl.Series(item_ids, dtype=pl.String).implode())
    hint = f"add it to {files[1]}, or leave {files[1]} out"
    for row, item in events.filter(~known).select("row", "item").iter_rows():
        findings.error("unknown-id", f"{files[0]} row {row}", f"item {item!r} is not in {files[1]}", hint)
    return events.filter(known)
