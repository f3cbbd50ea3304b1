"""Rows of interactions as events: user and item as text, and the time as a number.

Tables come in blocks. All blocks are looked at first, because the columns and how their values are read are the same
for the whole table; then each block is read. One block with all rows is the special case. Knows no numbers of items.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from capsid.data.columns import ALIASES, as_text_ids, find_column
from capsid.data.findings import Block, Findings
from capsid.errors import DataError

DAYS = ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y")
CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S%.f", " %I:%M %p", " %I:%M:%S %p")
ROLES = ("user", "item", "timestamp")
EVENT = "every row needs a user, an item and a timestamp"
# Kinds of values: what a message calls them, and their type.
_KINDS: dict[str, tuple[str, pl.DataType]] = {
    "none": ("no values", pl.Null()),
    "whole": ("whole numbers", pl.Int64()),
    "number": ("fractions", pl.Float64()),
    "text": ("text", pl.String()),
    "date": ("dates", pl.Datetime("us")),
    "other": ("values of another type", pl.Float64()),
}
_KNOWN = frozenset(name for names in ALIASES.values() for name in names)
TIMES_HINT = "use seconds since 1970, 2024-05-31 18:00:00 or 31.05.2024, and one order of day and month throughout"


@dataclass(frozen=True)
class TextTimes:
    """What the texts of a column are: how many there are, how many are whole numbers, and how many are numbers.

    `first` and `second` are the largest numbers before and after the first slash of dates such as 31/05/2024.
    """

    filled: int = 0
    whole: int = 0
    numbers: int = 0
    first: int = 0
    second: int = 0

    @classmethod
    def of(cls, series: pl.Series) -> TextTimes:
        text = _filled(series)
        whole, numbers = (int(text.cast(t, strict=False).is_not_null().sum()) for t in (pl.Int64, pl.Float64))
        first, second = (0, 0) if whole or numbers else _slashed(text)
        return cls(int(text.is_not_null().sum()), whole, numbers, first, second)

    def __add__(self, other: TextTimes) -> TextTimes:
        first, second = max(self.first, other.first), max(self.second, other.second)
        filled, whole = self.filled + other.filled, self.whole + other.whole
        return TextTimes(filled, whole, self.numbers + other.numbers, first, second)

    def read(self, series: pl.Series) -> pl.Series:
        """The times of one block; null where a text cannot be read."""
        text = _filled(series)
        if self.whole == self.filled:
            return text.cast(pl.Int64, strict=False)
        if self.whole or self.numbers:
            return text.cast(pl.Float64, strict=False)
        return self._dates(text).rename(series.name)

    def _dates(self, text: pl.Series) -> pl.Series:
        filled = int(text.is_not_null().sum())
        zoned = text.str.to_datetime(strict=False, time_zone="UTC", time_unit="us", format="%+")
        plain = [
            text.str.to_datetime(f, strict=False, time_unit="us")
            for f in ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f")
        ]
        found = pl.select(pl.coalesce(zoned.dt.replace_time_zone(None), *plain)).to_series()
        for day, clock in itertools.product([*DAYS, *self._order()], CLOCKS):
            if int(found.is_not_null().sum()) == filled:
                break
            found = found.zip_with(found.is_not_null(), _moment(text, day, clock))
        return found

    def _order(self) -> list[str]:
        """Whether 03/04/2024 is March or April: the order that fits every date of the column; none if ambiguous."""
        if self.first > 12 >= self.second:
            return ["%d/%m/%Y"]
        return ["%m/%d/%Y"] if self.second > 12 >= self.first else []


def sortable_times(series: pl.Series, file: str, texts: TextTimes) -> pl.Series:
    """Times as numbers; null if unreadable. `texts` says how a column of texts is read."""
    if series.dtype == pl.String:
        series = texts.read(series)
    if isinstance(series.dtype, pl.Datetime | pl.Date):
        return series.cast(pl.Datetime("us")).dt.epoch("us") / 1e6
    if series.dtype.is_integer():
        return series.cast(pl.Int64)
    if series.dtype.is_float():
        numbers = series.cast(pl.Float64)
        return numbers.set(~numbers.is_finite(), None) if numbers.len() else numbers
    if series.dtype == pl.Null:
        return series.cast(pl.Float64)
    raise DataError(
        f"{file}: column {series.name!r} of type {series.dtype} cannot be read as time",
        hint="use numbers (seconds since 1970) or dates such as 2024-05-31 18:00:00",
    )


def _filled(series: pl.Series) -> pl.Series:
    text = series.str.strip_chars()
    return text.set(text == "", None) if text.len() else text


def _moment(text: pl.Series, day: str, clock: str) -> pl.Series:
    if clock:
        return text.str.to_datetime(day + clock, strict=False, time_unit="us")
    return text.str.to_date(day, strict=False).cast(pl.Datetime("us"))


def _slashed(text: pl.Series) -> tuple[int, int]:
    """The largest first and second number of dates with slashes; 0 if there are none."""
    parts = text.drop_nulls().str.extract_groups(r"^(\d{1,2})/(\d{1,2})/\d{4}")
    first, second = (parts.struct.field(str(n)).cast(pl.Int64, strict=False).max() for n in (1, 2))
    return int(first or 0), int(second or 0)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Column:
    """A column over all blocks: its kind of values, and what it holds if it is read as text."""

    kind: str = "none"
    texts: TextTimes = field(default_factory=TextTimes)

    @classmethod
    def of(cls, series: pl.Series, *, times: bool, json: bool) -> Column:
        """Look at one block. Only texts of times are read; numbers of JSON may turn out to be among texts."""
        kind = _kind(series.dtype)
        looked = times and (kind == "text" or (json and kind in ("whole", "number")))
        return cls(kind, TextTimes.of(series.cast(pl.String)) if looked else TextTimes())

    def joined(self, other: Column, name: str, file: str) -> Column:
        """Both blocks together. Whole numbers may be among fractions or texts, as in one block of JSON."""
        kinds = {self.kind, other.kind} - {"none"}
        if len(kinds) > 1 and kinds not in ({"whole", "number"}, {"whole", "text"}):
            raise DataError(
                f"{file}: column {name!r} holds {_KINDS[other.kind][0]}, but {_KINDS[self.kind][0]} before",
                hint="write values of one type in all files and rows",
            )
        kind = max(kinds, key=list(_KINDS).index, default="none")
        return Column(kind, self.texts + other.texts)

    def cast(self, series: pl.Series) -> pl.Series:
        same = self.kind in (_kind(series.dtype), "other")
        return series if same else series.cast(_KINDS[self.kind][1])


@dataclass(frozen=True)
class EventForm:
    """Names of the user, item, time and (for `min_rating`) rating columns, and how they are read."""

    names: Mapping[str, str]
    columns: Mapping[str, Column]
    min_rating: float | None = None

    @property
    def time_type(self) -> pl.DataType:
        """The type of times: whole numbers or not."""
        name = self.names["timestamp"]
        nothing = pl.Series(name, [], dtype=_KINDS[self.columns[name].kind][1])
        return sortable_times(nothing, "", self.columns[name].texts).dtype


def look(
    blocks: Iterable[Block], *, columns: Mapping[str, str] | None = None, min_rating: float | None = None
) -> EventForm:
    """Find the columns and how they are read. `columns` names the user, item, timestamp or rating column."""
    given = columns or {}
    stamps = {given.get("timestamp"), *ALIASES["timestamp"]}
    seen: dict[str, Column] = {}
    names: dict[str, None] = {}
    file = "interactions"
    for block in blocks:
        file = block.file
        names.update(dict.fromkeys(block.frame.columns))
        for name in block.frame.columns:
            known = name if name in given.values() else name.strip().lower()
            if known in _KNOWN or name in given.values():
                new = Column.of(block.frame[name], times=known in stamps, json=".jsonl" in file)
                seen[name] = seen.get(name, Column()).joined(new, name, file)
    roles = ROLES if min_rating is None else (*ROLES, "rating")
    found = {role: find_column(list(names), role, file, given) for role in roles}
    return EventForm(found, {name: seen[name] for name in found.values()}, min_rating)


def read_events(block: Block, form: EventForm, findings: Findings) -> pl.DataFrame:
    """The events of a block: row (counted from 0 in the block), user, item, timestamp. Rows with gaps are reported."""
    frame = _with_all(block, form)
    user, item, time = (frame[form.names[role]] for role in ROLES)
    column = form.columns[form.names["timestamp"]]
    events = pl.DataFrame(
        {
            "row": pl.int_range(frame.height, eager=True),
            "user": as_text_ids(user, block),
            "item": as_text_ids(item, block),
            "timestamp": sortable_times(time, block.file, column.texts),
        }
    )
    if form.min_rating is not None:
        rating = _ratings(frame[form.names["rating"]], block, findings)
        events = events.filter((rating >= form.min_rating).fill_null(False))
    if not any(events[role].null_count() for role in ROLES):
        return events
    # A blank line of a CSV is a row without any value.
    events = events.filter(~pl.all_horizontal(pl.col(*ROLES).is_null()))
    gaps = events.select(gap=pl.any_horizontal(pl.all().is_null()))["gap"]
    for row in events.filter(gaps).iter_rows(named=True):
        _note_gap(row, {"user": user, "item": item, "timestamp": time}, block, findings)
    return events.filter(~gaps)


def check_any(rows: int, events: int, file: str, min_rating: float | None, findings: Findings) -> None:
    """After all blocks: report a table of which no row is left."""
    if events or findings.errors:
        return
    if rows and min_rating is not None:
        raise DataError(f"{file}: no rating is {min_rating} or more", hint="choose a smaller --min-rating")
    findings.error("no-interactions", file, "the table holds no interactions", EVENT)


def _with_all(block: Block, form: EventForm) -> pl.DataFrame:
    """The columns that are used, with their types. Lines of JSON need not name a column that is empty."""
    columns = {}
    for name in form.names.values():
        if name in block.frame.columns:
            columns[name] = form.columns[name].cast(block.frame[name])
        elif ".jsonl" in block.file:
            columns[name] = pl.repeat(None, block.frame.height, dtype=_KINDS[form.columns[name].kind][1], eager=True)
        else:
            has = ", ".join(block.frame.columns)
            raise DataError(f"{block.file} has no column {name!r}; it has: {has}", hint="name it as in other files")
    return pl.DataFrame(columns)


def _ratings(given: pl.Series, block: Block, findings: Findings) -> pl.Series:
    rating = given.cast(pl.Float64, strict=False)
    for row in (rating.is_null() & given.is_not_null() & (given.cast(pl.String) != "")).arg_true().to_list():
        message = f"the rating {given[row]!r} is not a number"
        findings.error("mixed-types", block.where(row), message, "write ratings as 4.5")
    return rating


def _note_gap(row: Mapping[str, Any], given: Mapping[str, pl.Series], block: Block, findings: Findings) -> None:
    """Report which values of a row are missing or cannot be read."""
    told, hint = [], EVENT
    for what, column in given.items():
        value = column[row["row"]]
        if row[what] is not None:
            continue
        told.append(f"{what} is missing" if value in (None, "") else f"{what} {value!r:.60} cannot be read")
        if what == "timestamp":
            hint = TIMES_HINT
    findings.error("missing-value", block.where(row["row"]), ", ".join(told), hint)


def _kind(dtype: pl.DataType) -> str:
    if dtype == pl.Null:
        return "none"
    if dtype.is_integer():
        return "whole"
    if dtype.is_float():
        return "number"
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        return "text"
    return "date" if isinstance(dtype, pl.Datetime | pl.Date) else "other"
