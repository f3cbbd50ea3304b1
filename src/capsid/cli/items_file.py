"""Reads the file of `--items`: JSON lines, Parquet or CSV, one item per row with its id and any attributes."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from capsid.data.columns import as_text_ids, find_column, item_attributes
from capsid.data.findings import Findings
from capsid.data.prepared import read_items
from capsid.data.table_files import read_table
from capsid.errors import DataError
from capsid.vocabulary import Vocabulary

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
        names, attributes = _table(path, findings)
    findings.raise_first(str(path))
    return names, attributes


def _table(path: Path, findings: Findings) -> tuple[Vocabulary, pl.DataFrame]:
    frame = read_table(path, findings)
    column = find_column(frame.columns, "item", path.name, {})
    ids = as_text_ids(frame[column], path.name)
    if ids.null_count():
        row = ids.is_null().arg_true()[0] + 1
        raise DataError(f"{path.name} row {row}: the item's id is missing", hint="every item needs an id")
    return Vocabulary(ids), item_attributes(frame.drop(column), path.name, findings)
