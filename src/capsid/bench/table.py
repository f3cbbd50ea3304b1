"""A table as a value, and how it is written: Markdown and LaTeX from the same cells.

Means and deviations over seeds, best in bold, second best underlined, the paper's numbers in brackets. A cell that was
not run is empty, and a note names the rows without any. Does not know where the numbers come from.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

PAPER_NOTE = "Numbers in [brackets] are the paper's, not ours."


@dataclass(frozen=True)
class Column:
    """`better`: which direction is better, or None to mark nothing. `scale` 100 writes shares as percent."""

    name: str
    better: Literal["high", "low"] | None = "high"
    digits: int = 4
    scale: float = 1.0
    unit: str = ""


@dataclass(frozen=True)
class Entry:
    """Values by seed (none: not run), or a text; and the paper's number. `below`: it is known only to be smaller."""

    values: tuple[float, ...] = ()
    paper: float | None = None
    text: str = ""
    below: bool = False

    @property
    def mean(self) -> float | None:
        """Over seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Sample deviation over seeds; None with fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Row:
    """`mark` follows the label; `context` rows are shown but never marked best or second."""

    label: str
    entries: tuple[Entry, ...]
    mark: str = ""
    context: bool = False

    @property
    def measured(self) -> bool:
        """Whether it has anything of ours."""
        return any(entry.values or entry.text for entry in self.entries)


@dataclass(frozen=True)
class Table:
    """Rows under columns. `first` heads the labels; `absent` names rows that were not run and are not shown."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    first: str = "method"
    notes: tuple[str, ...] = field(default=())
    absent: tuple[str, ...] = field(default=())

    @property
    def not_run(self) -> tuple[str, ...]:
        """The rows without a number of ours, shown or not."""
        return (*(row.label for row in self.rows if not row.measured), *self.absent)

    @property
    def empty(self) -> bool:
        """Whether it has none of our numbers."""
        return not any(row.measured for row in self.rows)


@dataclass(frozen=True)
class _Style:
    bold: str
    second: str
    plus_minus: str
    percent: str
    paper: str


MARKDOWN = _Style("**{}**", "<u>{}</u>", " ± ", "%", "[{}]")
LATEX = _Style(r"\textbf{{{}}}", r"\underline{{{}}}", r" $\pm$ ", r"\%", r"{{\scriptsize [{}]}}")


def markdown(table: Table) -> str:
    """Title, table, notes."""
    heads = [table.first, *(c.name for c in table.columns)]
    lines = [f"### {table.title}", "", _bar(heads), _bar(["---"] * len(heads))]
    for row, cells in zip(table.rows, _written(table, MARKDOWN)):
        lines.append(_bar([f"{row.label}{row.mark}", *cells]))
    return "\n".join([*lines, "", *(f"- {note}" for note in _notes(table))]).rstrip() + "\n"


def latex(table: Table) -> str:
    """A `table` environment in booktabs style."""
    heads = [table.first, *(c.name for c in table.columns)]
    body = [
        " & ".join([_escape(row.label + row.mark), *cells]) + r" \\"
        for row, cells in zip(table.rows, _written(table, LATEX))
    ]
    caption = _escape(" ".join([f"{table.title}.", *_notes(table)]))
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:{table.name}}}",
            rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}",
            r"\toprule",
            " & ".join(_escape(h) for h in heads) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def plain(table: Table) -> dict[str, object]:
    """For `--format json`: numbers without rounding."""
    rows = [
        {
            "row": row.label,
            **{
                c.name: {"values": list(e.values), "mean": e.mean, "deviation": e.deviation, "paper": e.paper}
                if not e.text
                else e.text
                for c, e in zip(table.columns, row.entries)
            },
        }
        for row in table.rows
    ]
    return {"table": table.name, "title": table.title, "rows": rows, "notes": list(_notes(table))}


def _notes(table: Table) -> tuple[str, ...]:
    notes = list(table.notes)
    if table.empty:
        notes.append("Nothing of this table has been run.")
    elif table.not_run:
        notes.append(f"Not run: {'; '.join(table.not_run)}.")
    if any(entry.paper is not None for row in table.rows for entry in row.entries):
        notes.append(PAPER_NOTE)
    return tuple(notes)


def _written(table: Table, style: _Style) -> list[list[str]]:
    ranks = [_places(table, number) for number in range(len(table.columns))]
    return [
        [
            _cell(entry, column, ranks[number].get(place), style)
            for number, (entry, column) in enumerate(zip(row.entries, table.columns))
        ]
        for place, row in enumerate(table.rows)
    ]


def _places(table: Table, number: int) -> dict[int, int]:
    """Row -> 1 for the best mean of a column, 2 for the second; equal as written means equal."""
    column = table.columns[number]
    if column.better is None:
        return {}
    means = {
        place: round(entry.mean * column.scale, column.digits)
        for place, row in enumerate(table.rows)
        if not row.context and (entry := row.entries[number]).mean is not None and entry.mean is not None
    }
    order = sorted(set(means.values()), reverse=column.better == "high")[:2]
    return {place: order.index(mean) + 1 for place, mean in means.items() if mean in order} if len(means) > 1 else {}


def _cell(entry: Entry, column: Column, rank: int | None, style: _Style) -> str:
    ours = _escape(entry.text) if style is LATEX else entry.text
    if entry.mean is not None:
        ours = ("< " if entry.below else "") + _number(entry.mean, column)
        if rank is not None:
            ours = (style.bold if rank == 1 else style.second).format(ours)
        if entry.deviation is not None:
            ours += style.plus_minus + _number(entry.deviation, column)
        ours += style.percent if column.unit == "%" else column.unit
    beside = style.paper.format(_number(entry.paper, column)) if entry.paper is not None else ""
    return " ".join(part for part in (ours, beside) if part)


def _number(value: float, column: Column) -> str:
    return f"{value * column.scale:,.{column.digits}f}"


def _bar(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escape(text: str) -> str:
    for sign in ("&", "%", "#", "_"):
        text = text.replace(sign, f"\\{sign}")
    for sign, name in (("±", r"$\pm$"), ("†", r"$^\dagger$"), ("‡", r"$^\ddagger$"), ("§", r"\S{}")):
        text = text.replace(sign, name)
    return text
