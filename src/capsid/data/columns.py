"""Finds the user, item and time columns of a table, and converts ids and attributes to their types.

Knows frames, neither files nor datasets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from capsid.base.vocabulary import Vocabulary
from capsid.data.attributes import FIXED, price_number
from capsid.data.findings import Block, Findings
from capsid.errors import DataError

ALIASES: Mapping[str, tuple[str, ...]] = {
    "user": ("user", "user_id", "userid", "uid", "customer_id", "customer", "reviewerid", "session_id", "session"),
    "item": ("item", "item_id", "itemid", "iid", "product_id", "product", "asin", "movie_id", "movieid", "parent_asin"),
    "timestamp": ("timestamp", "time", "ts", "date", "datetime", "created_at", "event_time", "unixreviewtime"),
    "rating": ("rating", "stars", "score", "overall"),
}
LIST_SEPARATOR = "|"
# Ids are written in lines that are separated by tabs.
NOT_IN_IDS = "\t\n\r\x0b\x0c"


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


def find_column(names: Sequence[str], what: str, file: str, columns: Mapping[str, str]) -> str:
    """The column of the user, item, timestamp or rating: the given one, else one with a common name."""
    chosen = columns.get(what)
    if chosen is not None:
        if chosen not in names:
            raise DataError(f"{file} has no column {chosen!r}", hint="it has: " + ", ".join(names))
        return chosen
    by_name = {name.strip().lower(): name for name in reversed(names)}
    for alias in ALIASES[what]:
        if alias in by_name:
            return by_name[alias]
    hint = f"name it one of: {', '.join(ALIASES[what])}"
    if what == "timestamp":
        hint += "; if the rows are already in time order, add a column with row numbers"
    raise DataError(f"{file} has no column for the {what}; it has: {', '.join(names) or 'none'}", hint=hint)


def can_be_id(text: str) -> bool:
    """Whether a text can be an id: not empty, no white space at its ends, no tab or line break inside."""
    return bool(text) and text == text.strip() and not any(c in text for c in NOT_IN_IDS)


def as_text_ids(series: pl.Series, block: Block) -> pl.Series:
    """Ids of a block as text: 7 and 7.0 both become "7"; empty text becomes null. A tab or line break is an error."""
    if series.dtype.is_float():
        whole = series.cast(pl.Int64, strict=False)
        if bool((whole.cast(series.dtype) != series).any()):
            raise DataError(
                f"{block.file}: the ids in column {series.name!r} are fractions", hint="use whole numbers or text"
            )
        series = whole
    elif not (series.dtype.is_integer() or series.dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null)):
        raise DataError(
            f"{block.file}: column {series.name!r} of type {series.dtype} cannot hold ids",
            hint="ids are text or whole numbers",
        )
    if series.dtype.is_integer():
        return series.cast(pl.String)
    text = series.cast(pl.String).str.strip_chars()
    broken = text.str.contains(f"[{NOT_IN_IDS}]").fill_null(False).arg_true()
    if len(broken):
        row = int(broken[0])
        raise DataError(
            f"{block.where(row)}: the id {text[row]!r:.80} contains a tab or line break",
            hint="ids may contain spaces, but no tabs or line breaks",
        )
    empty = text == ""
    return text.set(empty, None) if empty.any() else text


def item_attributes(block: Block, findings: Findings) -> pl.DataFrame:
    """Every column as text, list of text, number or truth value; other values are reported and left out."""
    return pl.DataFrame([_attribute(series, block, findings) for series in block.frame])


def _attribute(series: pl.Series, block: Block, findings: Findings) -> pl.Series:
    name, dtype = series.name, series.dtype
    if name == "price":
        return _price(series, block, findings)
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
        block.file,
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


def _price(series: pl.Series, block: Block, findings: Findings) -> pl.Series:
    if series.dtype != pl.String:
        if series.dtype.is_numeric() or series.dtype == pl.Null:
            return series.cast(pl.Float64).fill_nan(None)
        findings.error("mixed-types", block.file, f"column 'price' of type {series.dtype} is not a number")
        return pl.Series("price", [None] * series.len(), dtype=pl.Float64)
    values: list[float | None] = []
    for row, text in enumerate(series.to_list()):
        values.append(price_number(text) if text and text.strip() else None)
        if text and text.strip() and values[-1] is None:
            message = f"the price {text!r} is not a number"
            findings.error("mixed-types", block.where(row), message, "write prices as 12.50")
    return pl.Series("price", values, dtype=pl.Float64)


def items_frame(items: pl.DataFrame | Mapping[str, Sequence[Any]]) -> tuple[pl.DataFrame, Vocabulary]:
    """Items with a column `item_id` as a frame, and their ids."""
    block = Block("items", 1, to_polars(items))
    frame = block.frame
    if "item_id" not in frame.columns:
        raise DataError("items need a column 'item_id'", hint=f"found: {', '.join(frame.columns)}")
    # Convert ids as the file readers do, so that an item added later has the same id as in a file.
    ids = as_text_ids(frame["item_id"], block)
    if ids.null_count():
        where = block.where(int(ids.is_null().arg_true()[0]))
        raise DataError(f"{where}: the item's id is missing", hint="every item needs an id of its own")
    return frame.with_columns(ids.alias("item_id")), Vocabulary(ids)
