"""A folder of shards: one Parquet file for each part of the input, made in any order by any process.

A shard's file carries a hash of all its inputs. A finished shard with the right hash is not made again, so an
interrupted run resumes, and several processes or machines can share the work. Files are complete or absent. Knows
neither what the shards hold nor who makes them.
"""

from __future__ import annotations

import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from capsid.base.storage.artifacts import write_bytes, write_json
from capsid.base.storage.locks import held, holder
from capsid.base.storage.parquet import METADATA, SUMMARY, read_about
from capsid.errors import ArtifactError, ConfigError
from capsid.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa

Part = tuple[int, int]


class Shards(ABC):
    """What a folder of shards is made of. Opening it is cheap: a heavy part is loaded with the first shard."""

    name: ClassVar[str]
    # Names of other files and folders that belong to the folder.
    beside: ClassVar[frozenset[str]] = frozenset()
    # Where the files are.
    folder: Path

    @abstractmethod
    def size(self) -> tuple[int, int]:
        """How many rows there are, and at most in a shard."""

    @property
    def count(self) -> int:
        """How many shards there are."""
        rows, most = self.size()
        if most < 1:
            raise ConfigError(f"rows_per_shard must be at least 1, got {most}", hint="give at least one row")
        return -(-rows // most)

    def bounds(self, number: int) -> tuple[int, int]:
        """The first row of a shard, and the one after its last."""
        rows, most = self.size()
        return number * most, min((number + 1) * most, rows)

    def items(self, number: int) -> int:
        """How many rows a shard has."""
        start, stop = self.bounds(number)
        return stop - start

    def sizes(self) -> dict[str, Any]:
        """Numbers for `shards.json`."""
        rows, most = self.size()
        return {"items": rows, "rows_per_shard": most, "shards": self.count}

    @abstractmethod
    def common(self) -> dict[str, Any]:
        """Plain values that all shards of one job have in their `about`."""

    @abstractmethod
    def about(self, number: int) -> dict[str, Any]:
        """Everything that the content of a shard depends on, as plain values and hashes."""

    @abstractmethod
    def table(self, number: int) -> pa.Table:
        """The content of a shard."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """What `shards.json` says about the whole folder."""


@dataclass(frozen=True)
class ShardDone:
    """One finished shard; `written` is false if it was there already."""

    number: int
    written: bool
    items: int


@dataclass(frozen=True)
class ShardsDone:
    """Result of a run. `complete`: the folder now holds every shard, including those of other processes."""

    shards: int
    written: int
    kept: int
    items: int
    complete: bool


def shard_file(shards: Shards, number: int) -> Path:
    """The file of a shard."""
    return shards.folder / f"{shards.name}-{number:05d}.parquet"


def numbers_of(part: Part, count: int) -> range:
    """The shards of part i of n: every n-th, beginning with the i-th."""
    if not 1 <= part[0] <= part[1]:
        raise ConfigError(f"part {part[0]}/{part[1]} does not exist", hint="write 1/2 for the first of two parts")
    return range(part[0] - 1, count, part[1])


def write_shard(shards: Shards, number: int) -> ShardDone:
    """Make a shard unless it is there already."""
    about, file = shards.about(number), shard_file(shards, number)
    if read_about(file) == about:
        return ShardDone(number, False, shards.items(number))
    # From here until the end the folder may mix old and new shards, or be incomplete.
    (shards.folder / SUMMARY).unlink(missing_ok=True)
    write_bytes(file, parquet_bytes(shards.table(number), about))
    return ShardDone(number, True, shards.items(number))


def collect(shards: Shards, done: Iterable[ShardDone], progress: Progress, what: str) -> ShardsDone:
    """Follow the shards of a run as they finish, then write `shards.json` if none is missing."""
    written = kept = items = 0
    for shard in done:
        written, kept, items = written + shard.written, kept + (not shard.written), items + shard.items
        progress.update(f"{what}: {written + kept:,} of {shards.count:,} shards, {items:,} rows")
    complete = _finish(shards)
    progress.line(f"{what}: {written:,} shards written, {kept:,} already present, {shards.count:,} in total")
    return ShardsDone(shards.count, written, kept, items, complete)


@contextlib.contextmanager
def shard_lock(folder: Path, part: Part) -> Iterator[None]:
    """Be the only driver of this part. Two drivers would do no harm, but all the work twice."""
    lock = folder.with_name(f".{folder.name}.{part[0]}-of-{part[1]}.lock")
    with contextlib.ExitStack() as stack:
        try:
            ours = stack.enter_context(held(lock, wait=False))
        except OSError as error:
            raise ArtifactError(f"could not write {folder}: {error.strerror}", hint="choose another --out") from None
        if not ours:
            by = holder(lock)
            raise ArtifactError(
                f"another capsid process is writing the shards of {folder}{f' ({by})' if by else ''}",
                hint="wait until it is done, or stop it: finished shards are kept",
            )
        yield


def check_folder(shards: Shards) -> None:
    """Refuse a folder that holds other shards or other files."""
    folder = shards.folder
    try:
        there = folder.exists()
    except OSError as error:  # such as a name that is too long
        raise ArtifactError(f"could not write {folder}: {error.strerror}", hint="choose another --out") from None
    if there and not folder.is_dir():
        raise ArtifactError(f"{folder} exists and is not a folder", hint="choose another --out")
    for path in sorted(folder.glob("*")) if there else ():
        number = re.fullmatch(rf"{shards.name}-(\d{{5,}})\.parquet", path.name)
        if number and int(number[1]) >= shards.count:
            raise ArtifactError(
                f"{folder} holds {path.name}, but this input makes {shards.count} shards",
                hint="choose another --out, or remove the shards of the earlier run",
            )
        if not number and path.name not in {SUMMARY, *shards.beside} and not path.name.startswith("."):
            raise ArtifactError(f"{folder} holds {path.name}, which is not a shard", hint="choose another --out")


def _finish(shards: Shards) -> bool:
    """Write `shards.json` if all shards exist: with several parts, the last to finish writes it."""
    common, files = shards.common(), {}
    for number in range(shards.count):
        about = read_about(shard_file(shards, number))
        if about is None or any(about.get(name) != value for name, value in common.items()):
            return False
        files[shard_file(shards, number).name] = about["rows"]
    write_json(shards.folder / SUMMARY, shards.summary() | {"files": files})
    return True


def parquet_bytes(table: pa.Table, about: dict[str, Any]) -> bytes:
    """A shard's file, with its key."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pa.BufferOutputStream() as out:
        pq.write_table(table.replace_schema_metadata({METADATA: json.dumps(about)}), out, compression="zstd")
        return bytes(out.getvalue())
