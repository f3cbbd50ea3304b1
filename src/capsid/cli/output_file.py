"""The target of a verb's `--out`: standard output, a pipe or device, or a regular file.

An existing file is overwritten only with `force`. A file inside a run or another artifact is never overwritten, and a
pipe or device is never replaced by a file. Ranked lists of many users are CSV, Parquet or JSON lines, by the ending of
the name; without one, JSON lines. CSV and Parquet have a row for each item (user, rank, item, title, score).
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from capsid.base.storage.artifacts import enclosing_artifact, write_bytes
from capsid.cli.output import json_line
from capsid.errors import ArtifactError, ConfigError

STANDARD_OUTPUT = ("-", "/dev/stdout")


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
