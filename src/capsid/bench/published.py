"""Gains over a baseline that papers report, read from `published.toml`, beside the same gain of our own rows.

Published numbers are shown, always marked, and never mixed with ours. Explanations are kept in the same file.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from capsid.bench.results import Results
from capsid.bench.rows import BASELINE, Source, by_seed, remarks
from capsid.bench.table import Column, Entry, Row, Table
from capsid.evaluate.significance import Comparison, paired_bootstrap

FILE = Path(__file__).parent / "published.toml"
# Every published TIGER reads text alone. Ours reads text and behaviour, and this row reads what theirs read.
TEXT_BASELINE = "tiger-text"
METRIC = "recall@10"
NO_DIFFERENCE = "no clear difference here"


@dataclass(frozen=True)
class Gain:
    """The gain of a method over a baseline of the same published table, and our two rows that stand for them."""

    row: str
    against: str
    dataset: str
    data: str
    gain: float
    source: str

    @property
    def label(self) -> str:
        return f"{self.row} over {self.against}: {self.data}"

    @classmethod
    def read(cls, entry: dict[str, Any]) -> Gain:
        """From an entry of the file, which has the gain itself or the two numbers that it follows from."""
        gain = entry["gain"] if "gain" in entry else entry["value"] / entry["baseline"] - 1
        against, dataset = entry.get("against", BASELINE), entry.get("dataset", "amazon-beauty")
        return cls(entry["row"], against, dataset, entry["data"], gain, entry["source"])


@cache
def published() -> tuple[tuple[Gain, ...], dict[str, str]]:
    """All published gains in the file's order, and the explanations by row."""
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return tuple(map(Gain.read, content["gains"])), dict(content["why"])


def published_table(source: Source) -> Table:
    """For each published gain ours, its interval, and whether the signs agree."""
    cells = source.plan("main")
    gains, why = published()
    rows, notes = [], [f"{METRIC}, {source.evaluation}; intervals over users, and over seeds where there are several."]
    for gain in gains:
        found = _compared(cells, gain, gain.against, source.evaluation)
        on_text = _compared(cells, gain, TEXT_BASELINE, source.evaluation) if gain.against == BASELINE else None
        ours = Entry(() if found is None else (_relative(found.difference, found),), gain.gain)
        text = () if on_text is None else (_relative(on_text.difference, on_text),)
        rows.append(Row(gain.label, (ours, Entry(text=_interval(found)), Entry(text=_sign(found, gain)), Entry(text))))
    notes.append(f"The last column: over {TEXT_BASELINE}, because published TIGERs read text alone.")
    notes += [f"{gain.label}: [{100 * gain.gain:+.1f}%] is from {gain.source}." for gain in gains]
    notes += [f"{row}: {text}" for row, text in why.items()]
    notes += remarks(cells)
    columns = (
        Column("Recall@10, relative", None, 1, 100, "%"),
        Column("95 % interval", None),
        Column("sign", None),
        Column(f"over {TEXT_BASELINE}", None, 1, 100, "%"),
    )
    return Table("published", "Against what was published", columns, tuple(rows), "gain", tuple(notes))


def _compared(cells: Results, gain: Gain, against: str, evaluation: str) -> Comparison | None:
    """Our row minus another; None if one of them was not run."""
    sides = [
        [
            cells.values(cell, evaluation, METRIC)
            for cell in by_seed(cells, label, gain.dataset)
            if evaluation in cell.evaluations
        ]
        for label in (gain.row, against)
    ]
    return paired_bootstrap(*sides) if all(sides) else None


def _relative(difference: float, found: Comparison) -> float:
    return difference / found.second if found.second else 0.0


def _interval(found: Comparison | None) -> str:
    if found is None:
        return ""
    low, high = (100 * _relative(end, found) for end in (found.low, found.high))
    return f"{low:+.1f}% to {high:+.1f}%"


def _sign(found: Comparison | None, gain: Gain) -> str:
    if found is None:
        return ""
    if not found.significant:
        return NO_DIFFERENCE
    return "same" if (found.difference > 0) == (gain.gain > 0) else "opposite"
