"""Reads and writes the rows of stored ids: one row per item in `ids.parquet`, and no Python object for any of them.

Columns: `item_id`, `codes`, and where a collision policy made them `suffix` and `unsettled` (the codes before it).
Older folders hold the items in `ids.json` and the codes in `ids.npz`; they are read as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capsid import untrusted
from capsid.arrays import load_arrays
from capsid.arrow_lists import array, lists, numbers, ragged
from capsid.ragged import Ragged
from capsid.vocabulary import Vocabulary

if TYPE_CHECKING:
    import pyarrow as pa

ROWS, ARRAYS = "ids.parquet", "ids.npz"
# Values that one byte of the file may stand for: far more than ids can be compressed, far less than would fill memory.
MOST_PER_BYTE = 64


def write_rows(
    folder: Path, items: Vocabulary, codes: Ragged, suffixes: np.ndarray | None, unsettled: Ragged | None
) -> None:
    """Write `ids.parquet`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"item_id": items.column, "codes": lists(codes, np.int32)}
    if suffixes is not None:
        columns["suffix"] = numbers(suffixes)
    if unsettled is not None:
        columns["unsettled"] = lists(unsettled, np.int32)
    # A file of ours, so that a full disk is an OSError.
    with open(folder / ROWS, "wb") as file:
        pq.write_table(pa.table(columns), file, compression="zstd")


def read_rows(folder: Path, about: Mapping[str, Any]) -> tuple[Vocabulary, dict[str, np.ndarray]]:
    """The items, and unchecked arrays by name: codes, offsets, suffixes, unsettled, and those of other parts."""
    arrays = load_arrays(folder / ARRAYS)
    if not (folder / ROWS).exists():
        return Vocabulary(untrusted.texts(about["items"], "ids.json: items")), arrays
    table = _table(folder / ROWS)
    codes = ragged(table["codes"])
    arrays |= {"codes": codes.values, "offsets": codes.offsets}
    if "suffix" in table.column_names:
        arrays["suffixes"] = array(table["suffix"])
    if "unsettled" in table.column_names:
        unsettled = ragged(table["unsettled"])
        # A policy changes no length, so both kinds of codes have the same offsets.
        if not np.array_equal(unsettled.offsets, codes.offsets):
            raise untrusted.refuse(f"{ROWS}: codes and unsettled have rows of other lengths")
        arrays["unsettled"] = unsettled.values
    return Vocabulary(table["item_id"]), arrays


def _table(file: Path) -> pa.Table:
    """The whole file, unless it claims more than a file of its size can hold."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as stored:
        about = stored.metadata
        groups = (about.row_group(g) for g in range(about.num_row_groups))
        most = max((g.column(c).num_values for g in groups for c in range(about.num_columns)), default=0)
        if max(about.num_rows, most) > MOST_PER_BYTE * file.stat().st_size:
            raise untrusted.refuse(f"{file.name} claims {max(about.num_rows, most):,} values, too many for its size")
        # Without threads: they outlive the call, and a process that ends meanwhile is aborted.
        return stored.read(use_threads=False)
