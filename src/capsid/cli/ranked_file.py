"""Ranked lists of many users as a file: CSV, Parquet or JSON lines, by the ending of its name; without one, JSON lines.

CSV and Parquet have a row for each recommended item (user, rank, item, title, score), JSON lines one line per user.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from capsid.cli.output import json_line
from capsid.cli.output_file import OutputFile
from capsid.errors import ConfigError

ENDINGS = (".csv", ".parquet", ".jsonl")


@dataclass(frozen=True)
class RankedList:
    """What one user was recommended, best first. `titles` is None where they are not wanted."""

    user: str
    items: tuple[str, ...]
    scores: tuple[float, ...]
    titles: tuple[str, ...] | None = None
    personal: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """One JSON line."""
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
