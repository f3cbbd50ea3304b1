"""Guesses which columns hold users, items and times where their names do not say so. Knows frames and their values."""

from __future__ import annotations

import polars as pl

from capsid.data.columns import ALIASES
from capsid.data.events import TextTimes, sortable_times
from capsid.data.findings import Block
from capsid.errors import CapsidError

# Rows that are looked at, and numbers that may be times since 1970: 1973 in seconds to 2286 in microseconds.
ROWS = 10_000
EARLIEST, LATEST = 1e8, 1e16
# A column with fewer distinct values than this share of its rows is a category, not an id.
LEAST_DISTINCT = 0.001


def suggest(interactions: Block, items: Block | None) -> str | None:
    """The option `--columns` that would name the user, item and time columns; None if nothing fits."""
    frame = interactions.frame.head(ROWS)
    named = {alias: role for role, aliases in ALIASES.items() for alias in aliases}
    known = {named[name.strip().lower()]: name for name in frame.columns if name.strip().lower() in named}
    left = [name for name in frame.columns if name not in known.values()]
    time = known.get("timestamp") or next((name for name in left if _is_time(frame[name])), None)
    ids = [name for name in left if name != time and _is_id(frame[name])]
    item = known.get("item") or _item(frame, ids, items)
    user = known.get("user") or next((name for name in _by_values(frame, ids) if name != item), None)
    if time is None or item is None or user is None:
        return None
    columns = {"user": user, "item": item, "timestamp": time}
    new = [f"{role.removesuffix('stamp')}={name}" for role, name in columns.items() if known.get(role) != name]
    return f"--columns {','.join(new)}" if new else None


def _item(frame: pl.DataFrame, ids: list[str], items: Block | None) -> str | None:
    """The column whose values are the ids of the items; without items, that with the second most distinct values."""
    for column in [] if items is None else items.frame.columns:
        assert items is not None
        catalogue = items.frame[column].cast(pl.String)
        if catalogue.n_unique() == len(catalogue):
            for name in ids:
                if frame[name].cast(pl.String).is_in(catalogue.implode()).all():
                    return name
    return next(iter(_by_values(frame, ids)[1:]), None)


def _by_values(frame: pl.DataFrame, ids: list[str]) -> list[str]:
    """Columns, the one with the most distinct values first."""
    return sorted(ids, key=lambda name: -frame[name].n_unique())


def _is_id(series: pl.Series) -> bool:
    if not (series.dtype.is_integer() or series.dtype in (pl.String, pl.Categorical, pl.Enum)) or series.null_count():
        return False
    return max(1.0, LEAST_DISTINCT * len(series)) < series.n_unique() < len(series)


def _is_time(series: pl.Series) -> bool:
    if series.dtype.is_temporal():
        return True
    if series.dtype.is_numeric():
        numbers = series.cast(pl.Float64).drop_nulls()
        return len(numbers) > 0 and bool(((numbers > EARLIEST) & (numbers < LATEST)).all())
    if series.dtype != pl.String:
        return False
    try:
        read = sortable_times(series, "", TextTimes.of(series))
    except CapsidError:
        return False
    return len(read) > 0 and not read.null_count()
