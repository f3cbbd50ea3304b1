"""Reads table files (Parquet, CSV, JSON lines; plain or gzipped) whole or in blocks of rows.

A block is what a file of only those rows would give, so a caller that goes through all blocks sees the same rows for
any size of block. Broken lines are reported with their numbers, and rows of text files know their lines. Knows tables,
not what the columns mean.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import json
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeVar

import polars as pl

from capsid.data.columns import ALIASES
from capsid.data.findings import Block, Findings, not_utf8, numbered_lines
from capsid.errors import DataError

ENDINGS = (".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz")
# Comma first: it wins ties.
SEPARATORS = (",", ";", "\t", "|")
T = TypeVar("T")


@dataclass(frozen=True)
class BlockSize:
    """How much of a table is read at a time: rows, or bytes of a CSV."""

    rows: int = 1 << 20
    bytes: int = 1 << 26


@dataclass(frozen=True)
class CsvForm:
    """Separator and encoding of a CSV file."""

    separator: str
    encoding: str


@dataclass(frozen=True)
class _Part:
    """Rows of a file and, if it is text, on which lines they begin."""

    frame: pl.DataFrame
    line_of: Callable[[int], int] | None = None


def read_table(path: Path, findings: Findings) -> Block:
    """Read a whole file.

    CSV columns are read as text, so that an id such as 007 is kept. The separator and the encoding (UTF-8 or UTF-16)
    are detected from the beginning of the file. Text in another encoding is reported, with what it probably says.
    """
    (block,) = table_blocks(path, findings)
    return block


def table_blocks(
    path: Path, findings: Findings, size: BlockSize | None = None, *, only: Collection[str] | None = None
) -> Iterator[Block]:
    """The rows of a file in blocks of some size, at least one block; without a size one block has all of them.

    `only` names the columns that are wanted; others may be left out.
    """
    first = 1
    try:
        for part in _parts(path, findings, size, only):
            yield Block(path.name, first, part.frame, part.line_of)
            first += part.frame.height
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path.name} cannot be unpacked: {error}", hint="the copy or download is not complete: fetch it again"
        ) from None
    except DataError:
        raise
    except pl.exceptions.NoDataError:
        raise DataError(f"{path.name} is empty", hint="its first line must name the columns") from None
    except (Exception, pl.exceptions.PanicException) as error:  # polars may panic on a damaged file.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{path.name} cannot be read: {reason}", hint="the file may be truncated: write it again"
        ) from None


def _parts(path: Path, findings: Findings, size: BlockSize | None, only: Collection[str] | None) -> Iterator[_Part]:
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        return map(_Part, _parquet_frames(path, size, only))
    if name.endswith(".jsonl"):
        return _json_parts(path, findings, size, only)
    form = csv_form(path)
    if form.encoding != "utf-8":
        return _csv_by_line(_opened(path), path.name, findings, form, size)
    return _csv_parts(path, findings, form, size, only)


def _parquet_frames(path: Path, size: BlockSize | None, only: Collection[str] | None) -> Iterator[pl.DataFrame]:
    if size is None:
        yield pl.read_parquet(path)
        return
    import pyarrow.parquet as pq

    # Buffered: otherwise the columns of a row group are held, and some writers make one row group of a file.
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
        yield pl.DataFrame(file.schema_arrow.empty_table())
        names = [name for name in file.schema_arrow.names if only is None or name in only]
        for batch in file.iter_batches(batch_size=size.rows, columns=names, use_threads=False):
            yield pl.DataFrame(batch)


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


def _csv_parts(
    path: Path, findings: Findings, form: CsvForm, size: BlockSize | None, only: Collection[str] | None
) -> Iterator[_Part]:
    """Every piece of a CSV, read below the header. Pieces with broken rows are read again, row by row."""
    header, lines = b"", 0
    with _opened(path) as file:
        for piece in _pieces(file, size):
            data, frame, before = header + piece, None, lines - header.count(b"\n")
            if not _ends_too_early(piece, header or piece, form.separator):
                frame = _csv_at_once(data, form, only)
            if frame is not None:
                yield _Part(frame, _row_lines(data, frame.height, before))
            else:
                yield from _csv_by_line(io.BytesIO(data), path.name, findings, form, None, lines=before)
            lines += piece.count(b"\n")
            header = header or _first_record(piece)
        if not lines and not header:
            raise pl.exceptions.NoDataError


def _csv_at_once(data: bytes, form: CsvForm, only: Collection[str] | None) -> pl.DataFrame | None:
    """The rows of a CSV; None if there are broken ones."""
    try:
        names = None if only is None else list(only)
        return pl.read_csv(data, infer_schema=False, separator=form.separator, columns=names)
    except pl.exceptions.NoDataError:
        raise
    except (Exception, pl.exceptions.PanicException):  # polars may panic on a damaged file.
        return None


def _row_lines(data: bytes, rows: int, before: int) -> Callable[[int], int]:
    """On which lines the rows of a sound CSV begin, in a file that has `before` lines above it."""
    header = _first_record(data)
    first = header.count(b"\n") + before + 1
    if data.count(b"\n", len(header)) + (not data.endswith(b"\n")) == rows:
        return range(first, first + rows).__getitem__
    return _LinesOfFields(data[len(header) :], first).line_of


class _LinesOfFields:
    """Lines of rows whose fields may have line breaks. They are counted when one is asked for, which is rare."""

    def __init__(self, data: bytes, first: int) -> None:
        self._data = data
        self._first = first

    def line_of(self, row: int) -> int:
        """The line on which a row begins."""
        return self._first + self._begins[row]

    @cached_property
    def _begins(self) -> array[int]:
        # A row ends at a line break with an even number of quotation marks before it.
        begins, quotes = array("q", [0]), 0
        for number, line in enumerate(io.BytesIO(self._data), 1):
            quotes += line.count(b'"')
            if quotes % 2 == 0:
                begins.append(number)
        return begins


def _ends_too_early(piece: bytes, header: bytes, separator: str) -> bool:
    """Whether the last row may be incomplete: quotation marks are odd, or no line break ends it and it is short."""
    if piece.count(b'"') % 2:
        return True
    _, broken, last = piece.rstrip(b"\r\n").rpartition(b"\n")
    wanted = _first_record(header).count(separator.encode())
    return bool(broken) and not piece.endswith(b"\n") and last.count(separator.encode()) < wanted


def _pieces(file: IO[bytes], size: BlockSize | None) -> Iterator[bytes]:
    """The bytes of a CSV cut after rows; the first piece holds more than blank lines."""
    rest = b"" if size is not None else file.read()
    while size is not None and (data := file.read(size.bytes)):
        rest += data
        end = _end_of_rows(rest)
        if rest[:end].strip():
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def _end_of_rows(data: bytes) -> int:
    """Where the last complete row ends: after a line break with an even number of quotation marks before it."""
    end = len(data)
    while (end := data.rfind(b"\n", 0, end)) >= 0:
        if data.count(b'"', 0, end) % 2 == 0:
            return end + 1
    return 0


def _first_record(data: bytes) -> bytes:
    """The header with the blank lines before it."""
    end = len(data) - len(data.lstrip(b"\r\n"))
    while (end := data.find(b"\n", end)) >= 0:
        if data.count(b'"', 0, end) % 2 == 0:
            return data[: end + 1]
        end += 1
    return data + b"\n"


def _csv_by_line(
    file: IO[bytes], name: str, findings: Findings, form: CsvForm, size: BlockSize | None, *, lines: int = 0
) -> Iterator[_Part]:
    """Read the valid rows of a CSV one by one (slow); the others are reported. `lines` stand before it in its file."""
    encoding = "utf-8-sig" if form.encoding == "utf-8" else form.encoding
    with io.TextIOWrapper(file, encoding=encoding, errors="surrogateescape", newline="") as text:
        source = _Lines(text)
        reader = csv.reader(source, delimiter=form.separator)
        header = next(filter(None, reader), [])
        rows = _valid_rows(reader, source, len(header), name, findings, lines)
        while True:
            begins, part = _taken(rows, size)
            frame = pl.DataFrame(part, schema={name: pl.String for name in header}, orient="row")
            yield _Part(frame, begins.__getitem__)
            if size is None or len(part) < size.rows:
                return


def _taken(numbered: Iterator[tuple[int, T]], size: BlockSize | None) -> tuple[array[int], list[T]]:
    """The next rows with their lines."""
    begins, part = array("q"), []
    for line, row in itertools.islice(numbered, None if size is None else size.rows):
        begins.append(line)
        part.append(row)
    return begins, part


class _Lines:
    """Lines of a text; knows the last one, and whether a reader has asked for more than there are."""

    def __init__(self, text: Iterable[str]) -> None:
        self._text = iter(text)
        self.last = ""
        self.ended = False

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = next(self._text, None)
        if line is None:
            self.ended = True
            raise StopIteration
        self.last = line
        return line


def _valid_rows(
    reader: Any, source: _Lines, width: int, name: str, findings: Findings, lines: int
) -> Iterator[tuple[int, list[str]]]:
    """Rows with the lines on which they begin."""
    try:
        after = reader.line_num + lines + 1
        for row in reader:
            begin, after = after, reader.line_num + lines + 1
            where = f"{name}:{begin}"
            if source.ended:
                # A complete row is given before the next line is asked for.
                message = "a quotation mark is opened here and never closed"
                findings.error(
                    "unclosed-quote", where, message, "close it, or write it twice if it belongs to the text"
                )
            elif len(row) < width and row and not source.last.endswith(("\n", "\r")):
                message = f"the file ends within a line: {len(row)} fields, the header has {width}"
                findings.error("truncated-file", where, message, "the copy or download is not complete: fetch it again")
            elif any("\udc80" <= c <= "\udcff" for field in row for c in field):
                value = next(f for f in row if any("\udc80" <= c <= "\udcff" for c in f))
                findings.error("not-utf8", where, *not_utf8(value.encode("utf-8", "surrogateescape")))
            elif len(row) > width:
                message = f"the line has {len(row)} fields, the header {width}"
                findings.error("broken-line", where, message, 'put text with commas in "quotation marks"')
            elif row:
                yield begin, row + [""] * (width - len(row))
    except csv.Error as error:
        findings.error("broken-line", f"{name}:{reader.line_num + lines}", f"broken CSV: {error}")


def _json_parts(
    path: Path, findings: Findings, size: BlockSize | None, only: Collection[str] | None
) -> Iterator[_Part]:
    records = _json_records(path, findings)
    while True:
        begins, part = _taken(records, size)
        names = list(dict.fromkeys(name for record in part for name in record))
        if only is not None:
            names = [name for name in names if name in only]
        frame = pl.DataFrame({n: pl.Series([r.get(n) for r in part], strict=False) for n in names})
        yield _Part(frame, begins.__getitem__)
        if size is None or len(part) < size.rows:
            return


def _json_records(path: Path, findings: Findings) -> Iterator[tuple[int, dict[str, Any]]]:
    """One record per line, with its number; other lines are reported."""
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
            yield number, record
        else:
            message = f"expected a JSON object, found {line[:60].decode(errors='replace')!r}"
            findings.error("broken-line", f"{path.name}:{number}", message, "a line is one object")
