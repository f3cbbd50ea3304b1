"""Rows of unequal length as Arrow columns of lists, and back, without a Python object for any row.

Numbers become Arrow by their buffers: pyarrow would import pandas to look at NumPy arrays. Knows no items and no codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capsid.errors import DataError
from capsid.ragged import Ragged

if TYPE_CHECKING:
    import pyarrow as pa


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
