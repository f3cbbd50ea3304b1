"""Imports interactions that are larger than memory into a mapped folder, with the bytes that memory would give.

1. Blocks of rows become numbers (user, item, time) in a scratch file, in the order of the rows.
2. The k-core counts over that file until nothing changes.
3. The rows that remain are dealt to partitions of neighbouring users. Each partition is sorted by user and time in
   memory and appended to the result.

Memory holds some bytes per user and item, the table of items, one block and one partition. The scratch files lie in the
folder that is being written, so those of a killed process are removed with it.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from capsid.base.storage.artifacts import new_folder
from capsid.base.storage.mapped_texts import map_texts
from capsid.base.vocabulary import Vocabulary
from capsid.data.block import Block
from capsid.data.dataset import choose_text_fields
from capsid.data.events import check_any, read_events
from capsid.data.findings import Findings
from capsid.data.frames import no_attributes, note_unknown, read_catalogue
from capsid.data.kcore import Core, check_k, core_provenance, everything, find_core
from capsid.data.mapped import ITEMS, KIND, USERS, about_of, copy_texts, histories_writer, write_rest
from capsid.data.numbered_rows import NumberedRows, Partitions
from capsid.data.numbering import Numbering
from capsid.data.table_files import BlockSize
from capsid.data.tables import TableFiles, provenance
from capsid.progress import Progress, silent
from capsid.ragged import offsets_of


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
                if catalogue is not None:
                    _refuse_unknown(events, numbers, block, catalogue[0], findings)
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


def _refuse_unknown(events: pl.DataFrame, numbers: np.ndarray, block: Block, table: str, findings: Findings) -> None:
    if len(numbers) and numbers.min() < 0:
        note_unknown(events.filter(pl.Series(numbers < 0)), block, table, findings)
