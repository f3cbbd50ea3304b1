"""Times as numbers that can be sorted: numbers unchanged, dates as seconds since 1970.

A column of texts is read in one way throughout (whole numbers, numbers, or dates with one order of day and month), so
all of it is looked at before any of it is read: `TextTimes` counts block by block. Knows columns, not tables.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import polars as pl

from capsid.errors import DataError

DAYS = ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y")
CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S%.f", " %I:%M %p", " %I:%M:%S %p")


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
        """Look at one block."""
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
