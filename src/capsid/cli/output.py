"""Shared by all verbs: print JSON and tables, parse lists in options, report unknown items."""

from __future__ import annotations

import csv
import difflib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from capsid.base.printable import json_text, one_line, printable
from capsid.errors import ConfigError, DataError

LIMIT = 20_000


def print_json(value: Any) -> None:
    """One JSON value on standard output."""
    print(json_text(value, indent=2))


def say(*values: object, end: str = "\n", flush: bool = False) -> None:
    """Text on standard output; control characters that came with the data are escaped."""
    print(printable(" ".join(map(str, values))), end=end, flush=flush)


def warn(text: str) -> None:
    """A line on standard error, also with --quiet."""
    print(printable(text), file=sys.stderr)


def json_line(value: Any) -> str:
    """One line of a JSON-lines file."""
    return json_text(value) + "\n"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table on standard output; numbers are right-aligned. Nothing is cut off unless it is a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    rows = [list(row) for row in rows]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, name in enumerate(columns):
        number = all(isinstance(row[i], int | float) for row in rows)
        table.add_column(name, justify="right" if number else "left", no_wrap=number)
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def parse_ks(text: str) -> tuple[int, ...]:
    """`5,10` as increasing whole numbers."""
    from capsid.evaluate.metrics import check_k

    parts = [part.strip() for part in text.split(",")]
    # isdigit alone is not enough: it accepts ², which int() rejects.
    if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise ConfigError(f"-k must be whole numbers of at least 1, got {text[:40]!r}", hint="such as -k 5,10")
    return tuple(sorted({check_k(int(part), "-k") for part in parts}))


def parse_k(k: int) -> int:
    """Check the number of items asked for."""
    from capsid.evaluate.metrics import check_k

    return check_k(k, "-k")


def parse_ids(text: str) -> list[str]:
    """`ID,ID,...`, on one line or several; an id that contains a comma must be quoted."""
    try:
        parts = [
            part.strip() for row in csv.reader(text.splitlines(), skipinitialspace=True, strict=True) for part in row
        ]
    except csv.Error as error:
        raise DataError(f"the list of item ids cannot be read: {error}", hint="write ID,ID,...") from None
    return [part for part in parts if part]


def check_items(wanted: Sequence[str], items: Sequence[str], title: Callable[[int], str]) -> None:
    """Reject an id that is not in the catalogue, and suggest similar ids and titles."""
    for id_ in wanted:
        if id_ not in items:
            near = _near(id_, items, title)
            hint = (
                f"did you mean {' or '.join(near)}?" if near else "use the item ids of your data, separated by commas"
            )
            shown = repr(id_ if len(id_) <= 80 else f"{id_[:80]}...")
            raise DataError(f"there is no item {shown} among the {len(items):,} items", hint=hint)


def _near(id_: str, items: Sequence[str], title: Callable[[int], str]) -> list[str]:
    # Fuzzy matching reads every id: in a large catalogue, only ids with the same first two characters are compared.
    numbers: Sequence[int] = range(len(items))
    if len(items) > LIMIT:
        numbers = [n for n in numbers if items[n][:2] == id_[:2]][:LIMIT]
    by_id = {items[n]: n for n in numbers}
    found = [by_id[i] for i in difflib.get_close_matches(id_, by_id, n=3, cutoff=0.6)]
    if len(id_) >= 4 and len(items) <= LIMIT:
        found += [n for n in numbers if id_.lower() in title(n).lower() and n not in found][:3]
    return [repr(items[n]) if title(n) == items[n] else f"{items[n]!r} ({title(n)})" for n in found[:3]]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if isinstance(value, float) else one_line(str(value))
