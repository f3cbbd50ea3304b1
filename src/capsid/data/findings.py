"""What readers of files share: the problems that they find, where rows stand, and numbered lines of text.

Readers record a bad line as a finding and continue. Loading then calls `raise_first`; `capsid data check` shows all
findings. A message names the line of a text file on which a row begins, else the number of the row. Text files may be
gzipped; truncation or damage is reported after the last complete line. Does not know what a line means.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import polars as pl

from capsid.errors import DataError
from capsid.progress import Progress

Severity = Literal["error", "warning", "info"]
EXAMPLES = 5
BLOCK = 1 << 18
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


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
    # Whether all findings are kept, not the first few alone: for rows that are skipped.
    whole: bool = False
    skipped: list[Finding] = field(default_factory=list)

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

    def skip(self, codes: Collection[str]) -> int:
        """Errors of these codes are no errors any more; returns how many there were."""
        out = [f.code in codes and f.severity == "error" for f in self.kept]
        self.skipped = [f for f, gone in zip(self.kept, out) if gone]
        self.kept = [f for f, gone in zip(self.kept, out) if not gone]
        return sum(self.counts.pop(code, 0) for code in codes if self.severities.get(code) == "error")

    def tell(self, progress: Progress) -> None:
        """Print the warnings, and what of the data is not used."""
        for finding in self.kept:
            if finding.severity == "warning" or finding.code in ("unused-column", "duplicate-row"):
                what = "warning" if finding.severity == "warning" else "note"
                hint = f" ({finding.hint})" if finding.hint and what == "note" else ""
                progress.line(f"{what}: {finding.where}: {finding.message}{hint}")

    def _add(self, finding: Finding, times: int = 1) -> None:
        code = finding.code
        self.severities.setdefault(code, finding.severity)
        shown = sum(1 for f in self.kept if f.code == code) if self.counts[code] and not self.whole else 0
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


def find_file(folder: Path, *names: str) -> Path | None:
    """The one of these files that exists in the folder. Two are an error, because one of them would be ignored."""
    found = [name for name in names if (folder / name).is_file()]
    if len(found) > 1:
        raise DataError(f"{folder} has both {found[0]} and {found[1]}", hint="keep one of them")
    return folder / found[0] if found else None


def numbered_lines(path: Path, findings: Findings) -> Iterator[tuple[int, bytes]]:
    """Line number (from 1) and bytes of every line without its line break; blank lines are skipped."""
    number, rest = 0, b""
    blocks = _blocks(path)
    while True:
        try:
            block = next(blocks, None)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            what = "ends too early" if isinstance(error, EOFError) else f"is damaged ({error})"
            findings.error(
                "truncated-file",
                f"{path.name}:{number + 1}",
                f"the file {what}; {number:,} complete lines could be read",
                "the copy or download was truncated or damaged: fetch the file again",
            )
            return
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
        if block is None:
            break
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        for line in lines:
            number += 1
            if line.strip():
                yield number, line
    if rest.strip():
        yield number + 1, rest


def not_utf8(line: bytes) -> tuple[str, str]:
    """Message and hint for text that is not UTF-8: its bytes, and what they say in the most common other encoding."""
    bad = 0
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        bad = error.start
    shown = line[max(0, bad - 20) :][:40]
    return (
        f"the line is not valid UTF-8 text: {shown!r}, in Windows-1252 {shown.decode('cp1252', 'replace')!r}",
        "save the file as UTF-8; if the second form looks right: iconv -f WINDOWS-1252 -t UTF-8 FILE",
    )


def _blocks(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
        first = True
        start = file.peek(2)[:2]
        if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise DataError(f"{path.name} is UTF-16 text", hint="save the file as UTF-8")
        # read1 returns what could be decoded before it raises on a missing end; read would lose it.
        while block := file.read1(BLOCK):
            yield block.removeprefix(BYTE_ORDER_MARK) if first else block
            first = False
