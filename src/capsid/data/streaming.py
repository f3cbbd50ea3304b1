"""Imports interactions that are larger than memory into a mapped folder, with the bytes that memory would give.

1. Blocks of rows become numbers (user, item, time) in a scratch file, in the order of the rows.
2. The k-core counts over that file until nothing changes.
3. The rows that remain are dealt to partitions of neighbouring users. Each partition is sorted by user and time in
   memory and appended to the result.

Memory holds some bytes per user and item, the table of items, one block and one partition. The scratch files lie in the
folder that is being written, so those of a killed process are removed with it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import polars as pl

from capsid.base.storage.artifacts import new_folder
from capsid.base.storage.mapped_arrays import BLOCK, ArrayWriter, TextsWriter, array_blocks, map_texts
from capsid.base.storage.parquet import numbers as arrow_numbers
from capsid.base.vocabulary import Vocabulary
from capsid.data.dataset import (
    FILE_ORDER,
    Core,
    check_k,
    choose_text_fields,
    core_provenance,
    everything,
    find_core,
    k_core,
)
from capsid.data.events import check_any, read_events
from capsid.data.findings import Findings
from capsid.data.frames import no_attributes, note_unknown, read_catalogue
from capsid.data.mapped import ITEMS, KIND, USERS, about_of, copy_texts, histories_writer, write_mapped, write_rest
from capsid.data.prepared import write_prepared
from capsid.data.sources import SOURCES, existing_folder, form_of, load_dataset
from capsid.data.table_files import BlockSize
from capsid.data.table_options import PLAIN, TableOptions
from capsid.data.tables import TableFiles, provenance
from capsid.errors import ConfigError, DataError
from capsid.progress import Progress, silent
from capsid.ragged import offsets_of

if TYPE_CHECKING:
    import pyarrow as pa


Rows = tuple[np.ndarray, np.ndarray, np.ndarray]
HALF = np.uint64(32)
LOWER = np.uint64(2**32 - 1)
# Numbers of items and users are stored as int32.
MOST = 2**31 - 1
# A run of keys is joined to the one before it when it has this share of its length.
JOIN = 4


@dataclass(frozen=True, kw_only=True)
class Held:
    """How much is held in memory: of the tables, and interactions of a partition. The result does not depend on it."""

    block: BlockSize = field(default_factory=BlockSize)
    partition: int = 1 << 22


DEFAULT = Held()


@dataclass(frozen=True)
class Imported:
    """How much was written."""

    users: int
    items: int
    interactions: int


def import_tables(
    folder: Path,
    out: Path,
    *,
    k: int | None = None,
    min_rating: float | None = None,
    held: Held = DEFAULT,
    progress: Progress = silent,
) -> Imported:
    """Import a folder of tables as a mapped folder, whole or not at all. A broken row ends it at once."""
    if k is not None:
        check_k(k)
    job = _Import(TableFiles.of(folder), k, min_rating, held, progress)
    with new_folder(out, kind=KIND) as new:
        scratch = new / "scratch"
        scratch.mkdir()
        imported = job.run(new, scratch)
        shutil.rmtree(scratch)
    return imported


@dataclass(frozen=True)
class _Import:
    files: TableFiles
    k: int | None
    min_rating: float | None
    held: Held
    progress: Progress

    def run(self, new: Path, scratch: Path) -> Imported:
        findings = Findings()
        table = self.files.items_block(findings)
        catalogue = None if table is None else read_catalogue(table, {}, findings)
        findings.raise_first(str(self.files.folder))
        rows = self._number(scratch, None if table is None or catalogue is None else (table.file, catalogue[0]))
        users, items = (Vocabulary.of_unique(map_texts(scratch / name)) for name in (USERS, ITEMS))
        core, note = everything((len(users), len(items))), provenance(self.min_rating)
        name = self.files.folder.resolve().name
        if self.k is not None:
            core = find_core(rows.pairs, (len(users), len(items)), self.k, name, self.progress)
            note = core_provenance(note, self.k)
        offsets = self._sort(rows, core, new, scratch)
        for what, ids, chosen in ((USERS, users, core.users_U), (ITEMS, items, core.items_I)):
            copy_texts(ids, new / what, chosen)
        kept = int(core.items_I.sum())
        attributes = no_attributes(kept) if catalogue is None else catalogue[1].filter(core.items_I)
        # As for a dataset in memory: chosen for all items, and for those of the core only if none were found.
        fields = () if catalogue is None else choose_text_fields(catalogue[1]) or choose_text_fields(attributes)
        write_rest(new, offsets, attributes, about_of(name, fields, note))
        return Imported(len(offsets) - 1, kept, int(offsets[-1]))

    def _number(self, scratch: Path, catalogue: tuple[str, pl.Series] | None) -> NumberedRows:
        """All rows as numbers. `catalogue`: name and ids of the table of items, if there is one."""
        form = self.files.look(self.held.block, min_rating=self.min_rating)
        findings, read = Findings(), 0
        time_type = np.dtype("<i8" if form.time_type.is_integer() else "<f8")
        with (
            Numbering(scratch / USERS) as users,
            Numbering(scratch / ITEMS) as items,
            NumberedRows(scratch, time_type) as rows,
        ):
            if catalogue is not None:
                items.numbers(catalogue[1])
            for block in self.files.blocks(findings, self.held.block, only=list(form.names.values())):
                events = read_events(block, form, findings)
                numbers = items.numbers(events["item"], grow=catalogue is None)
                if catalogue is not None and len(numbers) and numbers.min() < 0:
                    note_unknown(events.filter(pl.Series(numbers < 0)), block, catalogue[0], findings)
                findings.raise_first(str(self.files.folder))
                rows.add(users.numbers(events["user"]), numbers, events["timestamp"].to_numpy())
                read += block.frame.height
                self.progress.update(f"{block.file}: {read:,} rows, {users.count:,} users, {items.count:,} items")
            check_any(read, len(rows), self.files.interactions[0].name, self.min_rating, findings)
            findings.raise_first(str(self.files.folder))
        return rows

    def _sort(self, rows: NumberedRows, core: Core, new: Path, scratch: Path) -> np.ndarray:
        """Write the histories; returns where each user's begins."""
        lengths_U, _ = core.counts(rows.pairs())
        offsets = offsets_of(lengths_U[core.users_U])
        user_numbers, item_numbers = (np.cumsum(mask, dtype=np.int32) - 1 for mask in (core.users_U, core.items_I))
        partitions = Partitions(scratch, offsets[:-1], self.held.partition, rows.time_type)
        done = 0
        for users_B, items_B, times_B in rows.rows():
            kept_B = core.keeps(users_B, items_B)
            partitions.add(user_numbers[users_B[kept_B]], item_numbers[items_B[kept_B]], times_B[kept_B])
            done += len(users_B)
            self.progress.update(f"{done:,} rows dealt to {len(partitions):,} partitions")
        rows.remove()
        with histories_writer(new, rows.time_type) as (items, times):
            for items_B, times_B in partitions.sorted():
                items.add(items_B)
                if times is not None:
                    times.add(times_B)
                self.progress.update(f"{items.count:,} of {offsets[-1]:,} interactions sorted")
        return offsets


def import_dataset(
    source: str | Path,
    out: Path,
    *,
    k: int | None = None,
    min_rating: float | None = None,
    mapped: bool = False,
    options: TableOptions = PLAIN,
    findings: Findings | None = None,
    progress: Progress = silent,
) -> Imported:
    """Write the dataset of that name or in that folder, or its k-core, to `out`: whole or not at all."""
    if k is not None:
        check_k(k)
    if mapped and str(source) not in SOURCES and form_of(existing_folder(source)) == "tables":
        if options.needed is not None:
            raise ConfigError(
                f"{options.needed} cannot be used with --mapped", hint="import without --mapped, or rename the columns"
            )
        return import_tables(existing_folder(source), out, k=k, min_rating=min_rating, progress=progress)
    dataset = load_dataset(
        source, min_rating=min_rating, ties=FILE_ORDER, options=options, findings=findings, progress=progress
    )
    if k is not None:
        dataset = k_core(dataset, k)
    (write_mapped if mapped else write_prepared)(dataset, out)
    return Imported(len(dataset.users), len(dataset.items), dataset.interactions)


class NumberedRows:
    """Rows in the order in which they were added. Used as a context while rows are added."""

    def __init__(self, folder: Path, time_type: np.dtype) -> None:
        self.time_type = time_type
        self._paths = tuple(folder / f"{name}.rows.npy" for name in ("user", "item", "time"))
        self._writers: tuple[ArrayWriter, ...] = ()

    def __enter__(self) -> Self:
        user, item, time = self._paths
        self._writers = (ArrayWriter(user, "<i4"), ArrayWriter(item, "<i4"), ArrayWriter(time, self.time_type))
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as stack:
            for writer in self._writers:
                stack.enter_context(writer)

    def __len__(self) -> int:
        return self._writers[0].count

    def add(self, *columns: np.ndarray) -> None:
        """Append rows: users, items, times."""
        for writer, column in zip(self._writers, columns, strict=True):
            writer.add(column)

    def pairs(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return zip(*(array_blocks(path, BLOCK) for path in self._paths[:2]), strict=True)

    def rows(self) -> Iterator[Rows]:
        return zip(*(array_blocks(path, BLOCK) for path in self._paths), strict=True)

    def remove(self) -> None:
        for path in self._paths:
            path.unlink()


class Partitions:
    """Rows dealt to files by their users: neighbouring users are in one file, in the order of `starts_U`.

    `starts_U` is where the rows of each user begin when all rows are sorted. A file takes users that begin within
    `size` rows, so it has at most `size` rows and those of one more user.
    """

    def __init__(self, folder: Path, starts_U: np.ndarray, size: int, time_type: np.dtype) -> None:
        part_U = starts_U // size
        self._count = int(part_U[-1]) + 1 if len(part_U) else 0
        # Small numbers are sorted by radix.
        self._part_U = part_U.astype(np.uint16) if self._count < 2**16 else part_U
        self._folder = folder
        self._row = np.dtype([("user", "<i4"), ("item", "<i4"), ("time", time_type)])

    def __len__(self) -> int:
        return self._count

    def add(self, users: np.ndarray, items: np.ndarray, times: np.ndarray) -> None:
        """Deal rows. Rows of one user stay in the order in which they are added."""
        rows = np.empty(len(users), dtype=self._row)
        rows["user"], rows["item"], rows["time"] = users, items, times
        parts = self._part_U[users]
        rows = rows[np.argsort(parts, kind="stable")]
        ends = np.cumsum(np.bincount(parts, minlength=self._count))
        for part in np.unique(parts).tolist():
            # Opened for each write: there may be more partitions than files that a process may have open.
            with open(self._path(part), "ab") as file:
                file.write(rows[ends[part - 1] if part else 0 : ends[part]].data)

    def sorted(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Items and times of one partition after the other, by user, then time, then order of adding; files go."""
        for part in range(self._count):
            path = self._path(part)
            if not path.exists():  # A user has more rows than a partition, so nobody begins in the next one.
                continue
            rows = np.fromfile(path, dtype=self._row)
            order = np.lexsort((rows["time"], rows["user"]))
            yield rows["item"][order], rows["time"][order]
            path.unlink()

    def _path(self, part: int) -> Path:
        return self._folder / f"part-{part:06d}"


class Numbering:
    """Numbers texts in the order in which they first occur; `count` of them have been seen.

    Texts are appended to the mapped files `path`; memory holds 8 bytes per text: the upper half of a 64-bit number is a
    hash, the lower half the text's number. Texts with the same hash are compared, so a collision costs time only.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._writer = TextsWriter(path)
        # Sorted runs of keys, longest first.
        self._runs: list[np.ndarray] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.__exit__(*error)
        self._runs = []

    def numbers(self, texts: pl.Series, *, grow: bool = True) -> np.ndarray:
        """The number of every text (no nulls). New texts get the next numbers; without `grow` they are -1."""
        import pyarrow as pa

        coded = texts.rechunk().to_arrow().cast(pa.large_string()).dictionary_encode()
        # Distinct texts in the order of their first rows.
        distinct = coded.dictionary
        hashes_D = pl.Series(distinct).hash().to_numpy() >> HALF
        numbers_D = self._find(distinct, hashes_D)
        new = np.flatnonzero(numbers_D < 0)
        if grow and len(new):
            numbers_D[new] = np.arange(self.count, self.count + len(new))
            self._add(distinct.take(arrow_numbers(new)), hashes_D[new])
        return numbers_D[coded.indices.to_numpy()]

    def _add(self, texts: pa.LargeStringArray, hashes: np.ndarray) -> None:
        if self.count + len(texts) > MOST:
            raise DataError(f"there are more than {MOST:,} different ids", hint="import a part of the interactions")
        self._writer.add(texts)
        self._writer.flush()
        numbers = np.arange(self.count, self.count + len(texts), dtype=np.uint64)
        self.count += len(texts)
        self._runs.append(np.sort(hashes << HALF | numbers))
        while len(self._runs) > 1 and JOIN * len(self._runs[-1]) >= len(self._runs[-2]):
            joined = np.concatenate([self._runs.pop(), self._runs.pop()])
            joined.sort()
            self._runs.append(joined)

    def _find(self, texts: pa.LargeStringArray, hashes: np.ndarray) -> np.ndarray:
        """The numbers of texts that were seen, and -1 for others."""
        import pyarrow.compute as pc

        found = np.full(len(texts), -1, dtype=np.int64)
        if not self.count:
            return found
        known = map_texts(self.path)
        # Sorted, the searches go through a run of keys from its beginning to its end.
        missing = np.argsort(hashes)
        for keys in self._runs:
            rows = missing
            places = keys.searchsorted(hashes[rows] << HALF)
            while len(rows):
                inside = places < len(keys)
                rows, places = rows[inside], places[inside]
                same = keys[places] >> HALF == hashes[rows]
                rows, places = rows[same], places[same]
                numbers = (keys[places] & LOWER).astype(np.int64)
                equal = pc.equal(known.take(arrow_numbers(numbers)), texts.take(arrow_numbers(rows)))
                hit = equal.to_numpy(zero_copy_only=False).astype(bool)
                found[rows[hit]] = numbers[hit]
                # Another text with this hash: the next key may be the one.
                rows, places = rows[~hit], places[~hit] + 1
            missing = missing[found[missing] < 0]
        return found
