"""A Parquet file of ids, numbers and lists of numbers, read and written without a Python object for any row.

Files are untrusted: one that claims more values than a file of its size can hold is refused. Does not know what the
columns mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capsid.base.storage import untrusted
from capsid.base.storage.arrow_lists import array, lists, numbers, ragged
from capsid.base.vocabulary import Vocabulary
from capsid.ragged import Ragged

if TYPE_CHECKING:
    import pyarrow as pa

# Values that one byte of a file may stand for: far more than ids can be compressed, far less than would fill memory.
MOST_PER_BYTE = 64


def write_rows(file: Path, columns: Mapping[str, Vocabulary | Ragged | np.ndarray]) -> None:
    """Write columns of one length: ids, lists of numbers, numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # A file that we opened, so that a full disk is an OSError.
    with open(file, "wb") as out:
        pq.write_table(pa.table({name: _column(rows) for name, rows in columns.items()}), out, compression="zstd")


def read_rows(file: Path, kinds: Mapping[str, type]) -> dict[str, Vocabulary | Ragged | np.ndarray]:
    """The columns that are there of those named by `kinds`, each as its kind."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as stored:
        about = stored.metadata
        groups = (about.row_group(g) for g in range(about.num_row_groups))
        most = max((g.column(c).num_values for g in groups for c in range(about.num_columns)), default=0)
        if max(about.num_rows, most) > MOST_PER_BYTE * file.stat().st_size:
            raise untrusted.refuse(f"{file.name} claims {max(about.num_rows, most):,} values, too many for its size")
        # Without threads: they outlive the call, and a process that ends meanwhile is aborted.
        table = stored.read(columns=list(kinds), use_threads=False)
    ways: dict[type, Any] = {Vocabulary: Vocabulary, Ragged: ragged, np.ndarray: array}
    return {name: ways[kinds[name]](table[name]) for name in table.column_names}


def _column(rows: Vocabulary | Ragged | np.ndarray) -> pa.Array:
    if isinstance(rows, Vocabulary):
        return rows.column
    return lists(rows, rows.values.dtype.type) if isinstance(rows, Ragged) else numbers(rows)
