"""Reads the file of `--items`: JSON lines, Parquet or CSV, one item per row with its id and any attributes."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from capsid.base.vocabulary import Vocabulary
from capsid.data.findings import Findings
from capsid.data.frames import read_catalogue
from capsid.data.prepared import read_items
from capsid.data.table_files import read_table
from capsid.errors import DataError

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
