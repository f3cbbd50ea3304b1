"""Turns two tables into numbered histories: `interactions` (user, item, timestamp) and optionally `items`.

Everything is held in memory; `streaming` does the same for interactions that are larger. The sort by time is stable, so
row order breaks ties. Knows frames, not files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from capsid.base.vocabulary import Vocabulary
from capsid.data.columns import as_text_ids, find_column, item_attributes
from capsid.data.events import EventForm, check_any, look, read_events
from capsid.data.findings import Block, Findings
from capsid.data.table_options import PLAIN, TableOptions
from capsid.errors import DataError
from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class Histories:
    """The content of the two tables: users, items with attributes, and every user's items in time order with times."""

    users: Vocabulary
    items: Vocabulary
    sequences: Ragged
    attributes: pl.DataFrame
    times: np.ndarray


def join_tables(
    interactions: Sequence[Block],
    items: Block | None,
    *,
    findings: Findings,
    columns: Mapping[str, str] | None = None,
    min_rating: float | None = None,
    options: TableOptions = PLAIN,
) -> Histories:
    """Everything readable; problems go to `findings`. `columns` names the user, item, timestamp or rating column."""
    columns = {**options.roles, **(columns or {})}
    form = look(interactions, columns=columns, min_rating=min_rating)
    _note_unused(interactions[0], form, findings)
    parts = [read_events(block, form, findings) for block in interactions]
    rows = sum(block.frame.height for block in interactions)
    check_any(rows, sum(part.height for part in parts), interactions[0].file, min_rating, findings)
    if items is None:
        events = _without_duplicates(pl.concat(parts), interactions[0].file, options, findings)
        item_ids = first_seen(events["item"])
        attributes = no_attributes(len(item_ids))
    else:
        ids, attributes = read_catalogue(_renamed(items, options), columns, findings)
        item_ids = ids.to_list()
        unknown = [~part["item"].is_in(ids.implode()) for part in parts]
        for block, part, which in zip(interactions, parts, unknown, strict=True):
            note_unknown(part.filter(which), block, items.file, findings)
        events = pl.concat([part.filter(~which) for part, which in zip(parts, unknown, strict=True)])
        events = _without_duplicates(events, interactions[0].file, options, findings)
    users, sequences, times = group_events(events, item_ids)
    return Histories(users, Vocabulary(item_ids), sequences, attributes, times)


def _note_unused(block: Block, form: EventForm, findings: Findings) -> None:
    """Name the columns of the interactions that nothing reads."""
    unused = [name for name in block.frame.columns if name not in form.names.values()]
    if unused:
        hint = "`rating` is read with --min-rating" if "rating" in map(str.lower, unused) else None
        findings.info("unused-column", block.file, f"columns that are not used: {', '.join(unused)}", hint)


def _without_duplicates(events: pl.DataFrame, file: str, options: TableOptions, findings: Findings) -> pl.DataFrame:
    """Count rows that repeat a user, item and time; with `drop_duplicates` the first of equal rows is kept."""
    kept = events.unique(["user", "item", "timestamp"], keep="first", maintain_order=True)
    if repeated := events.height - kept.height:
        message = f"{repeated:,} rows repeat the user, item and time of another row"
        hint = "they were dropped" if options.drop_duplicates else "--drop-duplicates keeps one of them"
        findings.info("duplicate-row", file, message, hint, times=repeated)
    return kept if options.drop_duplicates else events


def _renamed(items: Block, options: TableOptions) -> Block:
    """The table of items with the attributes' own names."""
    names = items.frame.columns
    for column, name in options.renamed.items():
        if column not in names:
            raise DataError(f"{items.file} has no column {column!r}", hint="it has: " + ", ".join(names))
        if name in names and name != column:
            raise DataError(f"{items.file} has a column {name!r} already, so {column!r} cannot become it")
    return replace(items, frame=items.frame.rename(options.renamed))


def no_attributes(count: int) -> pl.DataFrame:
    """The attributes of items of which nothing but ids is known."""
    return pl.DataFrame({"title": pl.repeat(None, count, dtype=pl.String, eager=True)})


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


def read_catalogue(items: Block, columns: Mapping[str, str], findings: Findings) -> tuple[pl.Series, pl.DataFrame]:
    """Ids and attributes of a table of items; problems go to `findings`."""
    frame, file = items.frame, items.file
    # The items table may use another column name than the interactions, so the given name need not exist here.
    column = find_column(frame.columns, "item", file, columns if columns.get("item") in frame.columns else {})
    ids = as_text_ids(frame[column], items)
    first = ids.is_first_distinct() & ids.is_not_null()
    # A blank line of a CSV is a row without any value.
    blank = frame.select(blank=pl.all_horizontal(pl.all().is_null()))["blank"]
    for row in (~first & ~blank).arg_true().to_list():
        where = items.where(row)
        if ids[row] is None:
            findings.error("missing-value", where, "the item's id is missing", "give every item an id, or drop the row")
        else:
            findings.error("duplicate-id", where, f"item {ids[row]!r} occurs twice", "keep one row per item")
    rest = frame.drop(column)
    if rest.width:
        attributes = item_attributes(replace(items, frame=rest), findings).filter(first)
    else:  # a frame without columns has no rows either
        attributes = no_attributes(int(first.sum()))
    return ids.filter(first), attributes


def note_unknown(events: pl.DataFrame, block: Block, items: str, findings: Findings) -> None:
    """Report events of a block whose items are not in the table of items."""
    hint = f"add it to {items}, or leave {items} out"
    for row, item in events.select("row", "item").iter_rows():
        findings.error("unknown-id", block.where(row), f"item {item!r} is not in {items}", hint)
