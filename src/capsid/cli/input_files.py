"""Files that verbs read: histories of many users (from a table, a dataset or a run), and the items of `--items`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from capsid.base.vocabulary import Vocabulary
from capsid.data.findings import Findings
from capsid.data.frames import read_catalogue
from capsid.data.prepared import read_items
from capsid.data.table_files import read_table
from capsid.errors import DataError, UnknownIdError
from capsid.progress import Progress

if TYPE_CHECKING:
    from capsid.data.dataset import Dataset
    from capsid.stored import Catalogue


@dataclass(frozen=True)
class UserHistories:
    """Users and the ids of their items, oldest first."""

    users: Sequence[str]
    histories: Sequence[Sequence[str]]

    def only(self, user: str) -> UserHistories:
        """One of the users; an unknown one is an error that names similar ones."""
        try:
            number = Vocabulary(self.users).number(user)
        except UnknownIdError as error:
            message = f"there is no user {user!r:.100} among the {len(self.users):,} users"
            raise UnknownIdError(message, hint=error.hint) from None
        return UserHistories((user,), (self.histories[number],))

    def unknown(self, items: Vocabulary) -> int:
        """How many of the interactions name items that are not among these."""
        return sum(item not in items for history in self.histories for item in history)


def of_run(catalogue: Catalogue) -> UserHistories:
    """All users of a run with all their stored items, including held-out ones."""
    return UserHistories(catalogue.users, [catalogue.items.ids(row) for row in catalogue.histories()])


def of_dataset(data: str, progress: Progress) -> UserHistories:
    """All users of a dataset."""
    from capsid.data.sources import load_dataset

    return _of(load_dataset(data, progress=progress))


def read_histories(path: Path) -> UserHistories:
    """All users of a table with the columns user, item and timestamp, in any form that `--data` reads."""
    from capsid.data.dataset import Dataset
    from capsid.data.findings import Findings
    from capsid.data.frames import join_tables
    from capsid.data.table_files import ENDINGS, read_table

    if not path.is_file():
        raise DataError(f"there is no file {path}", hint=f"--histories takes a table: {', '.join(ENDINGS)}")
    if not path.name.endswith(ENDINGS):
        raise DataError(f"--histories must end in {' or '.join(ENDINGS)}, got {path.name}", hint="convert the file")
    findings = Findings()
    block = read_table(path, findings)
    findings.raise_first()
    histories = join_tables([block], None, findings=findings)
    findings.raise_first()
    return _of(Dataset.of(histories, name=path.name))


def _of(dataset: Dataset) -> UserHistories:
    return UserHistories(dataset.users, [dataset.items.ids(row) for row in dataset.sequences])


FORMS = (".jsonl", ".jsonl.gz", ".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz")


def read_items_file(path: Path) -> tuple[Vocabulary, pl.DataFrame]:
    """Ids and attributes, in the same order."""
    if not path.is_file():
        raise DataError(f"there is no file {path}", hint=f"--items takes a file: {', '.join(FORMS)}")
    if not path.name.endswith(FORMS):
        raise DataError(
            f"--items must end in {' or '.join(FORMS)}, got {path.name}",
            hint="convert the file",
        )
    findings = Findings()
    if ".jsonl" in path.name:
        names, attributes = read_items(path, findings, spaces=True)
    else:
        ids, attributes = read_catalogue(read_table(path, findings), {}, findings)
        names = Vocabulary(ids)
    findings.raise_first()
    return names, attributes
