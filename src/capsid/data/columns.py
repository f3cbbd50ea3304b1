"""Reads table files, finds the user, item and time columns, and converts every column to its type.

Knows tables, not datasets.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import polars as pl

from capsid.data.attributes import FIXED, price_number
from capsid.data.findings import Findings
from capsid.data.lines import not_utf8, numbered_lines
from capsid.errors import DataError
from capsid.vocabulary import Vocabulary

ALIASES: Mapping[str, tuple[str, ...]] = {
    "user": ("user", "user_id", "userid", "uid", "customer_id", "customer", "reviewerid", "session_id", "session"),
    "item": ("item", "item_id", "itemid", "iid", "product_id", "product", "asin", "movie_id", "movieid", "parent_asin"),
    "timestamp": ("timestamp", "time", "ts", "date", "datetime", "created_at", "event_time", "unixreviewtime"),
    "rating": ("rating", "stars", "score", "overall"),
}
LIST_SEPARATOR = "|"
# Comma first: it wins ties.
SEPARATORS = (",", ";", "\t", "|")
# Ids are written in lines that are separated by tabs.
NOT_IN_IDS = "\t\n\r\x0b\x0c"
DAYS = ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y")
CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S%.f", " %I:%M %p", " %I:%M:%S %p")


def read_table(path: Path, findings: Findings) -> pl.DataFrame:
    """Read a Parquet, CSV or JSON-lines file, plain or gzipped.

    CSV columns are read as text, so that an id such as 007 is kept. The separator and the encoding (UTF-8 or UTF-16)
    are detected from the beginning of the file. Text in another encoding is reported, with what it probably says.
    """
    try:
        return _read(path, findings)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path.name} cannot be unpacked: {error}", hint="the copy or download is not complete: fetch it again"
        ) from None


def _read(path: Path, findings: Findings) -> pl.DataFrame:
    name = path.name.removesuffix(".gz")
    try:
        if name.endswith(".parquet"):
            return pl.read_parquet(path)
        if name.endswith(".jsonl"):
            return _read_json_lines(path, findings)
        form = csv_form(path)
        if form.encoding == "utf-8":
            return pl.read_csv(path, infer_schema=False, separator=form.separator)
        return _read_csv_by_line(path, findings, form)
    except DataError:
        raise
    except pl.exceptions.NoDataError:
        raise DataError(f"{path.name} is empty", hint="its first line must name the columns") from None
    except (Exception, pl.exceptions.PanicException) as error:  # polars may panic on a damaged file.
        if name.endswith((".csv", ".tsv")) and path.stat().st_size:
            return _read_csv_by_line(path, findings, csv_form(path))
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{path.name} cannot be read: {reason}", hint="the file may be truncated: write it again"
        ) from None


@dataclass(frozen=True)
class CsvForm:
    """Separator and encoding of a CSV file."""

    separator: str
    encoding: str


def csv_form(path: Path) -> CsvForm:
    """The encoding, and the separator that gives the first line the most known names, then the most columns."""
    with _opened(path) as file:
        start = file.read(1 << 16)
    encoding = utf16(start) or "utf-8"
    lines = start.decode(encoding, errors="replace").removeprefix("\ufeff").splitlines()
    known = {name for names in ALIASES.values() for name in names}

    def fits(separator: str) -> tuple[int, int]:
        names = next(csv.reader(lines[:1], delimiter=separator), [])
        return sum(name.strip().lower() in known for name in names), len(names)

    separator = max(SEPARATORS, key=fits)
    header = next(csv.reader(lines[:1], delimiter=separator), [])
    twice = next((name for name in header if name and header.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path.name} names the column {twice!r:.60} twice", hint="give every column its own name")
    return CsvForm(separator, encoding)


def utf16(start: bytes) -> str | None:
    """The form of UTF-16 that a file begins with, by its byte order mark or by zero bytes; None for other text."""
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    head = start[:200]
    if head[1::2].count(0) > len(head) // 4 > 0 == head[::2].count(0):
        return "utf-16-le"
    return "utf-16-be" if head[::2].count(0) > len(head) // 4 > 0 == head[1::2].count(0) else None


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")  # type: ignore[return-value]


def _read_json_lines(path: Path, findings: Findings) -> pl.DataFrame:
    """One record per line; other lines are reported."""
    records: list[dict[str, Any]] = []
    for number, line in numbered_lines(path, findings):
        try:
            record = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError:
            findings.error("not-utf8", f"{path.name}:{number}", *not_utf8(line))
            continue
        except (ValueError, RecursionError) as error:
            findings.error("broken-line", f"{path.name}:{number}", f"broken JSON: {error}", "a line is one object")
            continue
        if isinstance(record, dict):
            records.append(record)
        else:
            message = f"expected a JSON object, found {line[:60].decode(errors='replace')!r}"
            findings.error("broken-line", f"{path.name}:{number}", message, "a line is one object")
    names = list(dict.fromkeys(name for record in records for name in record))
    return pl.DataFrame({n: pl.Series([r.get(n) for r in records], strict=False) for n in names})


def _read_csv_by_line(path: Path, findings: Findings, form: CsvForm) -> pl.DataFrame:
    """Read the valid rows of a CSV one by one (slow); the others are reported with their lines."""
    rows: list[list[str]] = []
    encoding = "utf-8-sig" if form.encoding == "utf-8" else form.encoding
    with io.TextIOWrapper(_opened(path), encoding=encoding, errors="surrogateescape", newline="") as file:
        reader = csv.reader(file, delimiter=form.separator)
        header = next(reader, [])
        try:
            for row in reader:
                where = f"{path.name}:{reader.line_num}"
                if any("\udc80" <= c <= "\udcff" for field in row for c in field):
                    value = next(f for f in row if any("\udc80" <= c <= "\udcff" for c in f))
                    findings.error("not-utf8", where, *not_utf8(value.encode("utf-8", "surrogateescape")))
                elif len(row) > len(header):
                    message = f"the line has {len(row)} fields, the header {len(header)}"
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
    """The column of the user, item, timestamp or rating: the given one, else one with a common name."""
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
        hint += "; if the rows are already in time order, add a column with row numbers"
    raise DataError(f"{file} has no column for the {what}; it has: {', '.join(frame.columns) or 'none'}", hint=hint)


def can_be_id(text: str) -> bool:
    """Whether a text can be an id: not empty, no white space at its ends, no tab or line break inside."""
    return bool(text) and text == text.strip() and not any(c in text for c in NOT_IN_IDS)


def as_text_ids(series: pl.Series, file: str) -> pl.Series:
    """Ids as text: 7 and 7.0 both become "7"; empty text becomes null. A tab or line break in an id is an error."""
    if series.dtype.is_float():
        whole = series.cast(pl.Int64, strict=False)
        if bool((whole.cast(series.dtype) != series).any()):
            raise DataError(
                f"{file}: the ids in column {series.name!r} are fractions", hint="use whole numbers or text"
            )
        series = whole
    elif not (series.dtype.is_integer() or series.dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null)):
        raise DataError(
            f"{file}: column {series.name!r} of type {series.dtype} cannot hold ids",
            hint="ids are text or whole numbers",
        )
    text = series.cast(pl.String).str.strip_chars()
    broken = text.str.contains(f"[{NOT_IN_IDS}]").fill_null(False).arg_true()
    if len(broken):
        raise DataError(
            f"{file} row {broken[0] + 1}: the id {text[int(broken[0])]!r:.80} contains a tab or line break",
            hint="ids may contain spaces, but no tabs or line breaks",
        )
    return text.set(text == "", None) if text.len() else text


def sortable_times(series: pl.Series, file: str) -> pl.Series:
    """Times as numbers: numbers unchanged, dates as seconds since 1970; null if unreadable."""
    if series.dtype == pl.String:
        series = _times_from_text(series)
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


def item_attributes(frame: pl.DataFrame, file: str, findings: Findings) -> pl.DataFrame:
    """Every column as text, list of text, number or truth value; other values are reported and left out."""
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
    days = [*DAYS, *_slashed(text)]
    found = pl.select(pl.coalesce(zoned, *plain)).to_series()
    for day, clock in itertools.product(days, CLOCKS):
        if int(found.is_not_null().sum()) == filled:
            break
        found = found.zip_with(found.is_not_null(), _moment(text, day, clock))
    return found.rename(series.name)


def _moment(text: pl.Series, day: str, clock: str) -> pl.Series:
    if clock:
        return text.str.to_datetime(day + clock, strict=False, time_unit="us")
    return text.str.to_date(day, strict=False).cast(pl.Datetime("us"))


def _slashed(text: pl.Series) -> list[str]:
    """Whether 03/04/2024 is March or April: the order that fits every date of the column; none if ambiguous."""
    parts = text.drop_nulls().str.extract_groups(r"^(\d{1,2})/(\d{1,2})/\d{4}")
    first, second = (parts.struct.field(str(n)).cast(pl.Int64, strict=False).max() for n in (1, 2))
    if first is None or second is None:
        return []
    if int(first) > 12 >= int(second):  # type: ignore[arg-type]
        return ["%d/%m/%Y"]
    return ["%m/%d/%Y"] if int(second) > 12 >= int(first) else []  # type: ignore[arg-type]


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
    """A column whose texts are all numbers becomes numeric, unless its type is fixed as text."""
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


def items_frame(items: pl.DataFrame | Mapping[str, Sequence[Any]]) -> tuple[pl.DataFrame, Vocabulary]:
    """Items with a column `item_id` as a frame, and their ids."""
    frame = to_polars(items)
    if "item_id" not in frame.columns:
        raise DataError("items need a column 'item_id'", hint=f"found: {', '.join(frame.columns)}")
    # Convert ids as the file readers do, so that an item added later has the same id as in a file.
    ids = as_text_ids(frame["item_id"], "items")
    if ids.null_count():
        row = int(ids.is_null().arg_true()[0]) + 1
        raise DataError(f"items row {row}: the item's id is missing", hint="every item needs an id of its own")
    return frame.with_columns(ids.alias("item_id")), Vocabulary(ids)
