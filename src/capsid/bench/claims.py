"""Figures in pages that say which stored cells they come from, so that they can be drawn again and checked.

    <!-- claim strong; capsid-two; amazon-beauty; test-filtered -->0.1071 ± 0.0017 / 0.0646 ± 0.0013<!-- /claim -->

A selector has the plan, the row, the dataset and the evaluation; then, if wanted, the metrics (`recall@10, ndcg@10`),
and `above ROW`, which makes it the relative difference to that row in percent. Pages show the figure alone. Writes
nothing; knows Markdown only as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from capsid.bench.results import Results
from capsid.bench.row_values import metric_values
from capsid.bench.table import Entry
from capsid.errors import ConfigError, DataError, nearest

MARK = re.compile(r"<!-- claim (?P<selector>[^>]*?) -->(?P<shown>.*?)<!-- /claim -->", re.S)
METRICS = ("recall@10", "ndcg@10")
ABOVE = "above "
HINT = "write PLAN; ROW; DATASET; EVALUATION, then METRIC, METRIC and `above ROW` if wanted"


@dataclass(frozen=True)
class Selector:
    """Which cells a figure comes from. With `above`, it is compared with that row."""

    plan: str
    row: str
    dataset: str
    evaluation: str
    metrics: tuple[str, ...] = METRICS
    above: str | None = None

    @classmethod
    def read(cls, text: str) -> Selector:
        """From the text of a mark."""
        parts = [part.strip() for part in text.split(";")]
        if not 4 <= len(parts) <= 6 or not all(parts):
            raise ConfigError(f"a claim must name four to six things, got {text!r}", hint=HINT)
        plan, row, dataset, evaluation, *more = parts
        metrics: tuple[str, ...] = METRICS
        above = None
        for part in more:
            if part.startswith(ABOVE):
                above = part.removeprefix(ABOVE)
            else:
                metrics = tuple(m.strip() for m in part.split(","))
        return cls(plan, row, dataset, evaluation, metrics, above)


@dataclass(frozen=True)
class Claim:
    """A figure of a page as it is written and as the store has it; `problem` if the store has none."""

    page: str
    line: int
    selector: str
    shown: str
    stored: str = ""
    problem: str = ""

    @property
    def holds(self) -> bool:
        """Whether the page says what the store says."""
        return not self.problem and self.shown == self.stored


@dataclass
class Claims:
    """Reads figures from a store; `plan` gives the cells of a plan that may be compared."""

    plan: Callable[[str], Results]
    _plans: dict[str, Results] = field(default_factory=dict)

    def figure(self, wanted: Selector) -> str:
        """The figure as a page shows it; an error if the store does not have it."""
        entries = [self._entry(wanted, wanted.row, metric) for metric in wanted.metrics]
        if wanted.above is None:
            return " / ".join(map(_written, entries))
        others = [self._entry(wanted, wanted.above, metric) for metric in wanted.metrics]
        return " / ".join(f"{100 * (a.mean / b.mean - 1):+.0f} %" for a, b in zip(entries, others) if a.mean and b.mean)

    def of_page(self, page: Path, name: str) -> Iterator[Claim]:
        """The claims of a page, in order."""
        text = page.read_text(encoding="utf-8")
        for mark in MARK.finditer(text):
            line = text.count("\n", 0, mark.start()) + 1
            stored, problem = "", ""
            try:
                stored = self.figure(Selector.read(mark["selector"]))
            except (ConfigError, DataError) as error:
                problem = str(error)
            yield Claim(name, line, mark["selector"], mark["shown"], stored, problem)

    def drawn(self, text: str) -> str:
        """The text of a page with all figures as the store has them."""
        return MARK.sub(
            lambda m: f"<!-- claim {m['selector']} -->{self.figure(Selector.read(m['selector']))}<!-- /claim -->", text
        )

    def _entry(self, wanted: Selector, row: str, metric: str) -> Entry:
        cells = self._plans.setdefault(wanted.plan, self.plan(wanted.plan))
        entry = Entry(metric_values(cells, row, wanted.dataset, metric, wanted.evaluation))
        if entry.mean is None:
            rows = sorted({c.label for c in cells.select(dataset=wanted.dataset)})
            what = f"{metric} of {row!r} on {wanted.dataset} ({wanted.evaluation})"
            raise ConfigError(f"the plan {wanted.plan!r} has stored no {what}", hint=nearest(row, rows))
        return entry


def pages_in(folder: Path) -> list[Path]:
    """README and the guides of a repository."""
    return [page for page in (folder / "README.md", *sorted((folder / "docs").glob("*.md"))) if page.is_file()]


def _written(entry: Entry) -> str:
    mean = f"{entry.mean:.4f}"
    return mean if entry.deviation is None else f"{mean} ± {entry.deviation:.4f}"
