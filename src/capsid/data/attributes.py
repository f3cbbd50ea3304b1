"""Turns item records into one typed table: text as String, `categories` as List(String), `price` as Float64.

A column has one type. A value of another type is reported with its line and left out. Knows no file format.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from capsid.data.findings import Findings

Where = Callable[[int], str]
TYPES: Mapping[str, Any] = {
    "text": pl.String(),
    "list of text": pl.List(pl.String()),
    "whole number": pl.Int64(),
    "number": pl.Float64(),
    "truth value": pl.Boolean(),
}
# Columns with a fixed type, regardless of their values.
FIXED = {"title": "text", "brand": "text", "description": "text", "keywords": "text"} | {
    "categories": "list of text",
    "price": "number",
}


def attribute_frame(records: Sequence[Mapping[str, Any]], where: Where, findings: Findings) -> pl.DataFrame:
    """One row per record, one column per key, in order of first appearance. `where(row)` locates a record."""
    names: dict[str, None] = {}
    for record in records:
        names.update(dict.fromkeys(record))
    columns = {name: _column(name, [r.get(name) for r in records], where, findings) for name in names}
    if not columns:
        return pl.DataFrame({"title": pl.Series([None] * len(records), dtype=pl.String)})
    return pl.DataFrame(columns)


def kind_of(value: Any) -> str | None:
    """The name in `TYPES` of a JSON value's type; None for a missing value, "other" if no column can hold it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "truth value"
    if isinstance(value, str):
        return "text"
    if isinstance(value, int):
        return "whole number" if abs(value) < 2**63 else "other"
    if isinstance(value, float):
        return "number" if math.isfinite(value) else None
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return "list of text"
    return "other"


def price_number(text: str) -> float | None:
    """The number in a price such as "12.50" or "$1,299.00", or None."""
    try:
        number = float(text.strip().lstrip("$€£¥").replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _column(name: str, values: list[Any], where: Where, findings: Findings) -> pl.Series:
    kinds = [kind_of(v) for v in values]
    wanted = FIXED.get(name) or _common_kind(kinds)
    out: list[Any] = []
    for row, (value, kind) in enumerate(zip(values, kinds)):
        if kind is None:
            out.append(None)
        elif kind == wanted:
            out.append(value)
        elif wanted == "number" and kind == "whole number":
            out.append(float(value))
        elif name == "price" and kind == "text" and (not value.strip() or price_number(value) is not None):
            out.append(price_number(value) if value.strip() else None)
        else:
            out.append(None)
            _complain(name, wanted, kind, value, where(row), findings)
    return pl.Series(name, out, dtype=TYPES[wanted])


def _common_kind(kinds: Sequence[str | None]) -> str:
    seen = [k for k in kinds if k is not None and k != "other"]
    if not seen:
        return "text"
    first = seen[0]
    # A column of whole numbers and fractions is a column of numbers.
    return "number" if first == "whole number" and "number" in seen else first


def _complain(name: str, wanted: str, kind: str, value: Any, where: str, findings: Findings) -> None:
    shown = repr(value)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    if kind == "other":
        hint = "use text, numbers, truth values or lists of text; nested objects cannot be attributes"
        message = f"{name!r} is {shown}, which no column can hold"
    else:
        hint = f"make every {name!r} a {wanted}" + (' such as ["Beauty", "Makeup"]' if name == "categories" else "")
        message = f"{name!r} is {shown} ({kind}), but the column holds {wanted}"
    findings.error("mixed-types", where, message, hint)
