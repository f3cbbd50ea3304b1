"""Columns of tables: reading files, finding the user, item and time columns, and giving every column its type.

Knows tables, not datasets.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from capsid.data.attributes import FIXED, price_number
from capsid.data.findings import Findings
from capsid.errors import DataError

ALIASES: Mapping[str, tuple[str, ...]] = {
    "user": ("user", "user_id", "userid", "uid", "customer_id", "customer", "reviewerid", "session_id", "session"),
    "item": ("item", "item_id", "itemid", "iid", "product_id", "product", "asin", "movie_id", "movieid", "parent_asin"),
    "timestamp": ("timestamp", "time", "ts", "date", "datetime", "created_at", "event_time", "unixreviewtime"),
    "rating": ("rating", "stars", "score", "overall"),
}
LIST_SEPARATOR = "|"


def read_table(path: Path, findings: Findings) -> pl.DataFrame:
    """A Parquet or CSV file; the columns of a CSV come as text, so that an id such as 007 stays what it is."""
    try:
        if path.suffix == ".parquet":
            return pl.read_parquet(path)
        return pl.read_csv(path, infer_schema=False)
    except pl.exceptions.NoDataError:
        raise DataError(f"{path.name} is empty", hint="its first line must name the columns") from None
    except (Exception, pl.exceptions.PanicException) as error:  # Its Rust side may panic on a damaged file.
        if path.suffix == ".csv" and path.stat().st_size:
            return _read_csv_by_line(path, findings)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{path.name} cannot be read: {reason}", hint="the file may be cut off: write it again"
        ) from None


def _read_csv_by_line(path: Path, findings: Findings) -> pl.DataFrame:
    """The rows of a CSV that are whole, slowly; the others are noted with their lines."""
    rows: list[list[str]] = []
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        if len(set(header)) != len(header):
            raise DataError(f"{path.name} names a column twice: {', '.join(header)}")
        try:
            for row in reader:
                where = f"{path.name}:{reader.line_num}"
                if any("\udc80" <= c <= "\udcff" for field in row for c in field):
                    findings.error("not-utf8", where, "the line is not valid UTF-8 text", "save the file as UTF-8")
                elif len(row) > len(header):
                    message = f"the line has {len(row)} fields, the first one {len(header)}"
                    findings.error("broken-line", where, message, 'put text with commas in "quotation marks"')
                elif row:
                    rows.append(row + [""] * (len(header) - len(row)))
        except csv.Error as error:
            findings.error("broken-line", f"{path.name}:{reader.line_num}", f"broken CSV: {error}")
    return pl.DataFrame(rows, schema={name: pl.String for name in header}, orient="row")


def to_polars(frame: Any) -> pl.DataFrame:
    """A polars frame from polars, pandas, Arrow, or a mapping of columns."""
    if isinstance(frame, pl.DataFrame):
        return frame
    if isinstance(frame, pl.LazyFrame):
        return frame.collect()
    try:
        if type(frame).__module__.split(".")[0] == "pandas":
            return pl.from_pandas(frame)
        return pl.DataFrame(frame)
    except Exception as error:
        hint = "give a polars or pandas DataFrame, an Arrow table or a dict of columns"
        raise DataError(f"a {type(frame).__name__} cannot be read as a table: {error}", hint=hint) from None


def find_column(frame: pl.DataFrame, what: str, file: str, columns: Mapping[str, str]) -> str:
    """The column that holds the user, item, timestamp or rating: the one given, else one of its common names."""
    chosen = columns.get(what)
    if chosen is not None:
        if chosen not in frame.columns:
            raise DataError(f"{file} has no column {chosen!r}", hint="it has: " + ", ".join(frame.columns))
        return chosen
    by_name = {name.strip().lower(): name for name in reversed(frame.columns)}
    for alias in ALIASES[what]:
        if alias in by_name:
            return by_name[alias]
    hint = f"name it one of: {', '.join(ALIASES[what])}"
    if what == "timestamp":
        hint += "; if the rows are in time order already, add a column that counts them"
    raise DataError(f"{file} has no column for the {what}; it has: {', '.join(frame.columns) or 'none'}", hint=hint)


def as_text_ids(series: pl.Series, file: str) -> pl.Series:
    """Ids as text: 7 and 7.0 both become "7"; empty text is missing."""
    if series.dtype.is_float():
        whole = series.cast(pl.Int64, strict=False)
        if bool((whole.cast(series.dtype) != series).any()):
            raise DataError(
                f"{file}: the ids in column {series.name!r} are fractions", hint="use whole numbers or text"
            )
        series = whole
    elif not (series.dtype.is_integer() or series.dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null)):
        raise DataError(f"{file}: column {series.name!r} of type {series.dtype} cannot hold ids")
    text = series.cast(pl.String).str.strip_chars()
    return text.set(text == "", None) if text.len() else text


def sortable_times(series: pl.Series, file: str) -> pl.Series:
    """Times as numbers: numbers as they are, dates as seconds since 1970; null where one cannot be read."""
    if series.dtype == pl.String:
        series = _times_from_text(series)
    if isinstance(series.dtype, pl.Datetime | pl.Date):
        return series.cast(pl.Datetime("us")).dt.epoch("us") / 1e6
    if series.dtype.is_integer():
        return series.cast(pl.Int64)
    if series.dtype.is_float():
        return series.cast(pl.Float64).fill_nan(None)
    if series.dtype == pl.Null:
        return series.cast(pl.Float64)
    raise DataError(
        f"{file}: column {series.name!r} of type {series.dtype} cannot be read as time",
        hint="use numbers (seconds since 1970) or dates such as 2024-05-31 18:00:00",
    )


def item_attributes(frame: pl.DataFrame, file: str, findings: Findings) -> pl.DataFrame:
    """Every column as text, list of text or number; what cannot be read so is noted and left out."""
    return pl.DataFrame([_attribute(frame[name], file, findings) for name in frame.columns])


def _times_from_text(series: pl.Series) -> pl.Series:
    text = series.str.strip_chars()
    text = text.set(text == "", None) if text.len() else text
    filled = text.is_not_null().sum()
    guesses = [text.cast(pl.Int64, strict=False), text.cast(pl.Float64, strict=False)]
    if not filled or max(g.is_not_null().sum() for g in guesses) > 0:
        return next((g for g in guesses if g.is_not_null().sum() == filled), guesses[1])
    zoned = text.str.to_datetime(strict=False, time_zone="UTC", time_unit="us", format="%+").dt.replace_time_zone(None)
    plain = [
        text.str.to_datetime(f, strict=False, time_unit="us") for f in ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f")
    ]
    days = text.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("us"))
    return pl.select(pl.coalesce(zoned, *plain, days)).to_series().rename(series.name)


def _attribute(series: pl.Series, file: str, findings: Findings) -> pl.Series:
    name, dtype = series.name, series.dtype
    if name == "price":
        return _price(series, file, findings)
    if isinstance(dtype, pl.List | pl.Array) and dtype.inner in (pl.String, pl.Categorical, pl.Null):
        return series.cast(pl.List(pl.String))
    if name == "categories" and dtype in (pl.String, pl.Null):
        return series.cast(pl.String).str.split(LIST_SEPARATOR).list.eval(_not_empty())
    if dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null) or dtype.is_temporal():
        return _guess(series.cast(pl.String))
    if FIXED.get(name) == "text" and dtype.is_numeric():
        return series.cast(pl.String)
    if dtype == pl.Boolean:
        return series
    if dtype.is_integer():
        return series.cast(pl.Int64)
    if dtype.is_numeric():
        return series.cast(pl.Float64).fill_nan(None)
    findings.error(
        "mixed-types",
        file,
        f"column {name!r} of type {dtype} cannot be an attribute",
        "use text, numbers or lists of text",
    )
    return pl.Series(name, [None] * series.len(), dtype=pl.String)


def _not_empty() -> pl.Expr:
    stripped = pl.element().str.strip_chars()
    return stripped.filter(stripped != "")


def _guess(series: pl.Series) -> pl.Series:
    """Text that is all numbers becomes numbers, as in a CSV file, unless the column is known to be text."""
    if FIXED.get(series.name) == "text":
        return series
    text = series.str.strip_chars()
    filled = (text != "").fill_null(False)
    for dtype in (pl.Int64, pl.Float64):
        numbers = text.cast(dtype, strict=False)
        if filled.any() and bool((numbers.is_not_null() == filled).all()):
            return numbers
    return series


def _price(series: pl.Series, file: str, findings: Findings) -> pl.Series:
    if series.dtype != pl.String:
        if series.dtype.is_numeric() or series.dtype == pl.Null:
            return series.cast(pl.Float64).fill_nan(None)
        findings.error("mixed-types", file, f"column 'price' of type {series.dtype} is not a number")
        return pl.Series("price", [None] * series.len(), dtype=pl.Float64)
    values: list[float | None] = []
    for row, text in enumerate(series.to_list()):
        values.append(price_number(text) if text and text.strip() else None)
        if text and text.strip() and values[-1] is None:
            where = f"{file} row {row + 1}"
            findings.error("mixed-types", where, f"the price {text!r} is not a number", "write prices as 12.50")
    return pl.Series("price", values, dtype=pl.Float64)
