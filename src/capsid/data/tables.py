"""A folder of tables as a dataset: `interactions` and optionally `items`, as Parquet, CSV or JSON lines."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from capsid.data.columns import read_table
from capsid.data.dataset import Dataset
from capsid.data.findings import Findings
from capsid.data.frames import join_tables
from capsid.data.lines import find_file
from capsid.errors import DataError

ENDINGS = (".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz")
INTERACTIONS = tuple(f"interactions{ending}" for ending in ENDINGS)
ITEMS = tuple(f"items{ending}" for ending in ENDINGS)


def is_tables(folder: Path) -> bool:
    """Whether the folder holds a table of interactions."""
    return find_file(folder, *INTERACTIONS) is not None


def _read(path: Path, findings: Findings) -> pl.DataFrame:
    frame = read_table(path, findings)
    if not frame.width:
        # Not a line could be read: why is more useful than which columns are missing.
        findings.raise_first(str(path.parent))
    return frame


def read_tables(folder: Path, findings: Findings, *, min_rating: float | None = None) -> Dataset:
    """Everything that can be read; problems go to `findings`."""
    path = find_file(folder, *INTERACTIONS)
    if path is None:
        raise DataError(f"{folder} has no {INTERACTIONS[0]} or {INTERACTIONS[1]}")
    items_path = find_file(folder, *ITEMS)
    histories = join_tables(
        _read(path, findings),
        _read(items_path, findings) if items_path else None,
        findings=findings,
        files=(path.name, items_path.name if items_path else "items"),
        min_rating=min_rating,
    )
    note = {"format": "tables"} | ({} if min_rating is None else {"min_rating": str(min_rating)})
    return Dataset.of(histories, name=folder.resolve().name, provenance=note)
