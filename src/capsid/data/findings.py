"""Collects the problems that readers find, so that all of them can be shown; and says where rows stand.

Readers record a bad line here and continue. Loading then calls `raise_first`; `capsid data check` shows all findings. A
message names the line of a text file on which a row begins, else the number of the row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

from capsid.errors import DataError
from capsid.progress import Progress

Severity = Literal["error", "warning", "info"]
EXAMPLES = 5


@dataclass(frozen=True)
class Finding:
    """One problem: its severity, code, message, location ("items.jsonl.gz:17"), and what to do about it."""

    severity: Severity
    code: str
    message: str
    where: str
    hint: str | None = None


@dataclass(eq=False)
class Findings:
    """Keeps the first few findings of every code, and counts them all."""

    kept: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    severities: dict[str, Severity] = field(default_factory=dict)

    def error(self, code: str, where: str, message: str, hint: str | None = None) -> None:
        """Add an error: the data cannot be used as it is."""
        self._add(Finding("error", code, message, where, hint))

    def warning(self, code: str, where: str, message: str, hint: str | None = None, *, times: int = 1) -> None:
        """Add a warning: the data can be used, but perhaps not as expected. One message may count several `times`."""
        self._add(Finding("warning", code, message, where, hint), times)

    def info(self, code: str, where: str, message: str, hint: str | None = None, *, times: int = 1) -> None:
        """Add a property of the data that is worth knowing."""
        self._add(Finding("info", code, message, where, hint), times)

    @property
    def errors(self) -> int:
        """How many errors there were, kept or not."""
        return sum(n for code, n in self.counts.items() if self.severities[code] == "error")

    def raise_first(self, source: str | None = None) -> None:
        """Raise a DataError for the first error, saying how many more there are.

        `source` is the name or folder of a dataset, which `capsid data check` takes.
        """
        first = next((f for f in self.kept if f.severity == "error"), None)
        if first is None:
            return
        more = self.errors - 1
        tail = f" (and {more} more error{'s' if more > 1 else ''})" if more else ""
        hint = first.hint
        if more and source is not None:
            hint = f"{hint}; " if hint else ""
            hint += f"`capsid data check {source}` explains them all"
        raise DataError(f"{first.where}: {first.message}{tail}", hint=hint)

    def tell(self, progress: Progress) -> None:
        for finding in self.kept:
            if finding.severity == "warning":
                progress.line(f"warning: {finding.where}: {finding.message}")

    def _add(self, finding: Finding, times: int = 1) -> None:
        code = finding.code
        self.severities.setdefault(code, finding.severity)
        shown = sum(1 for f in self.kept if f.code == code) if self.counts[code] else 0
        self.counts[code] += times
        if shown < EXAMPLES:
            self.kept.append(finding)


@dataclass(frozen=True)
class Block:
    """Rows of a file or a frame; `first` is the number of the first one, counted from 1.

    In a text file, `line_of` gives the line on which a row begins, as an editor counts. Broken lines, blank lines and
    fields with line breaks make it differ from the number of the row.
    """

    file: str
    first: int
    frame: pl.DataFrame
    line_of: Callable[[int], int] | None = None

    def where(self, row: int) -> str:
        """The place of a row of this block, counted from 0."""
        if self.line_of is None:
            return f"{self.file} row {self.first + row}"
        return f"{self.file}:{self.line_of(row)}"
