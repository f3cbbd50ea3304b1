"""What verbs print and write: JSON, tables and lists on standard output, and the file of `--out`; lists in options.

An existing file is overwritten only with `force`. A file inside a run or another artifact is never overwritten, and a
pipe or device is never replaced by a file. Ranked lists of many users are CSV, Parquet or JSON lines, by the ending of
the name; without one, JSON lines. CSV and Parquet have a row for each item (user, rank, item, title, score).
"""

from __future__ import annotations

import csv
import difflib
import io
import os
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any

import typer

from capsid.base.printable import json_text, one_line, printable
from capsid.base.storage.artifacts import enclosing_artifact, write_bytes
from capsid.errors import ArtifactError, ConfigError, DataError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LIMIT = 20_000
STANDARD_OUTPUT = ("-", "/dev/stdout")
ENDINGS = (".csv", ".parquet", ".jsonl")


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


@dataclass(frozen=True)
class OutputFile:
    """Where text or bytes are written. `stream`: a pipe or a device such as /dev/null."""

    name: str
    printed: bool = False
    stream: bool = False

    @classmethod
    def check(cls, out: str, *, force: bool = False) -> OutputFile:
        """Reject a path that cannot or must not be written, before any work is done."""
        if out in STANDARD_OUTPUT:
            return cls(out, printed=True)
        try:
            about = os.stat(out)
        except FileNotFoundError:
            about = None
        except (OSError, ValueError) as error:
            raise ArtifactError(f"could not write {out}: {error}", hint="choose another --out") from None
        mode = about.st_mode if about else stat.S_IFREG
        if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
            return cls(out, stream=True)
        if stat.S_ISDIR(mode):
            raise ArtifactError(f"{out} is a folder", hint="name a file, such as out.jsonl, or - to print")
        if not stat.S_ISREG(mode):
            raise ArtifactError(f"{out} is neither a file nor a pipe", hint="name a file, such as out.jsonl")
        inside = enclosing_artifact(Path(os.path.realpath(out)))
        if inside is not None:
            raise ArtifactError(f"{out} is inside {inside}, which is finished", hint="choose a path outside of it")
        if about is not None and about.st_size and not force:
            raise ArtifactError(f"{out} exists already", hint="choose another --out, or replace it with --force")
        return cls(out)

    def write(self, content: str | bytes) -> None:
        """Write text or bytes; a regular file is written whole or not at all."""
        data = content.encode() if isinstance(content, str) else content
        if self.printed:
            sys.stdout.write(data.decode())
        elif self.stream:
            try:
                with open(self.name, "wb") as file:
                    file.write(data)
            except BrokenPipeError:
                raise
            except OSError as error:
                raise ArtifactError(
                    f"could not write {self.name}: {error.strerror}", hint="choose another --out, or - to print"
                ) from None
        else:
            write_bytes(Path(self.name), data)


@dataclass(frozen=True)
class RankedList:
    """What one user was recommended, best first. `titles` is None where they are not wanted."""

    user: str
    items: tuple[str, ...]
    scores: tuple[float, ...]
    titles: tuple[str, ...] | None = None
    personal: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        known = {"titles": self.titles, "personal": self.personal}
        plain = {"user": self.user, "items": self.items, "scores": self.scores}
        return plain | {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True)
class RankedFile:
    """A file of ranked lists; `ending` says in which form."""

    file: OutputFile
    ending: str

    @classmethod
    def check(cls, out: str, *, force: bool = False) -> RankedFile:
        """Reject a path that cannot be written or has another ending, before any work is done."""
        file = OutputFile.check(out, force=force)
        ending = PurePath(out).suffix
        if file.printed or not ending:
            return cls(file, ".jsonl")
        if ending not in ENDINGS:
            raise ConfigError(
                f"--out must end in {' or '.join(ENDINGS)}, got {PurePath(out).name!r:.80}",
                hint="the ending chooses the form; - prints JSON lines",
            )
        return cls(file, ending)

    def write(self, lists: Iterable[RankedList]) -> None:
        """Write all lists; a regular file is written whole or not at all."""
        if self.ending == ".jsonl":
            self.file.write("".join(json_line(found.to_dict()) for found in lists))
            return
        frame, buffer = _rows(lists), io.BytesIO()
        if self.ending == ".csv":
            frame.write_csv(buffer)
        else:
            frame.write_parquet(buffer)
        self.file.write(buffer.getvalue())


def _rows(lists: Iterable[RankedList]) -> Any:
    import polars as pl

    columns: dict[str, list[Any]] = {"user": [], "rank": [], "item": [], "title": [], "score": []}
    titled = True
    for found in lists:
        columns["user"] += [found.user] * len(found.items)
        columns["rank"] += range(1, len(found.items) + 1)
        columns["item"] += found.items
        columns["score"] += found.scores
        titled = found.titles is not None
        columns["title"] += found.titles or ()
    if not titled:
        del columns["title"]
    types = {"user": pl.String, "rank": pl.Int64, "item": pl.String, "title": pl.String, "score": pl.Float64}
    return pl.DataFrame(columns, schema={name: types[name] for name in columns})
