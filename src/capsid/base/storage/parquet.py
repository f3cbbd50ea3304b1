"""Parquet files and Arrow columns without a Python object for any row: ids, numbers, lists of numbers, shards.

Numbers become Arrow by their buffers: pyarrow would import pandas to look at NumPy arrays. Files are untrusted: one
that claims more values than a file of its size can hold is refused. A shard carries a key, the hash of its inputs;
`shards.json` lists all shards and is written last. Does not know what columns and shards mean (`capsid.scale.shards`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capsid.base.storage import untrusted
from capsid.base.storage.artifacts import read_json
from capsid.base.vocabulary import Vocabulary
from capsid.errors import ArtifactError, DataError
from capsid.ragged import Ragged

if TYPE_CHECKING:
    import pyarrow as pa

# Values that one byte of a file may stand for: far more than ids can be compressed, far less than would fill memory.
MOST_PER_BYTE = 64
SUMMARY = "shards.json"
METADATA = b"capsid"


def numbers(values: np.ndarray) -> pa.Array:
    """A one-dimensional array as an Arrow column, not copied."""
    import pyarrow as pa

    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def lists(rows: Ragged, kind: type) -> pa.ListArray:
    """Rows as a column of lists of numbers of this kind."""
    import pyarrow as pa

    if len(rows.values) < 2**31:
        return pa.ListArray.from_arrays(numbers(rows.offsets.astype(np.int32)), numbers(rows.values.astype(kind)))
    return pa.LargeListArray.from_arrays(numbers(rows.offsets.astype(np.int64)), numbers(rows.values.astype(kind)))


def ragged(column: pa.Array | pa.ChunkedArray) -> Ragged:
    """A column of lists of numbers as rows; missing lists or numbers are an error."""
    import pyarrow as pa

    joined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not (pa.types.is_list(joined.type) or pa.types.is_large_list(joined.type)):
        raise DataError(f"expected a column of lists, got {joined.type}")
    if joined.null_count or joined.values.null_count:
        raise DataError("a list or a number in it is missing")
    wide = np.int64 if pa.types.is_large_list(joined.type) else np.int32
    offsets = np.frombuffer(joined.buffers()[1], dtype=wide)[joined.offset : joined.offset + len(joined) + 1]
    offsets = offsets.astype(np.int64) if len(joined) else np.zeros(1, dtype=np.int64)
    return Ragged(array(joined.values)[offsets[0] : offsets[-1]], offsets - offsets[0])


def array(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """A column of numbers as an array, not copied where that is possible; a missing number is an error."""
    import pyarrow as pa

    joined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not (pa.types.is_integer(joined.type) or pa.types.is_floating(joined.type)):
        raise DataError(f"expected a column of numbers, got {joined.type}")
    if joined.null_count:
        raise DataError("a number is missing")
    kind = np.dtype(joined.type.to_pandas_dtype())
    data = joined.buffers()[1]
    if data is None or not len(joined):
        return np.zeros(0, dtype=kind)
    return np.frombuffer(data, dtype=kind)[joined.offset : joined.offset + len(joined)]


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


def read_about(path: Path) -> dict[str, Any] | None:
    """The key of a finished shard; None if the file is missing, incomplete or no shard."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        about = json.loads((pq.read_metadata(path).metadata or {})[METADATA])
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None
    return about if isinstance(about, dict) else None


def check_whole(folder: Path, files: Sequence[Path]) -> None:
    """Refuse shards if one is missing, incomplete or of other data. Files that are no shards are not checked."""
    again = "run the command that wrote the shards again: it makes what is missing"
    found = {path.name: read_about(path) for path in files}
    if not (folder / SUMMARY).is_file():
        if any(about is not None for about in found.values()):
            raise ArtifactError(f"the shards in {folder} are not finished: there is no {SUMMARY}", hint=again)
        return
    with untrusted.interpreting(folder / SUMMARY, "list of shards"):
        listed = untrusted.mapping(
            untrusted.mapping(read_json(folder / SUMMARY), SUMMARY)["files"], f"{SUMMARY}: files"
        )
    for name, rows in listed.items():
        if name not in found:
            raise ArtifactError(f"the shard {folder / name} is missing", hint=again)
        about = found[name]
        if about is None:
            raise ArtifactError(f"the shard {folder / name} could not be read", hint=f"it may be truncated; {again}")
        if about.get("rows") != rows:
            raise ArtifactError(f"the shard {folder / name} was made from other data than {SUMMARY} says", hint=again)
    for name in found.keys() - listed.keys():
        raise ArtifactError(
            f"{folder} holds {name}, which {SUMMARY} does not list", hint="remove it, or give another folder"
        )
