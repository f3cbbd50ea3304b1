"""Rows of unequal length as Arrow columns, and back."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsid.base.storage.parquet import array, lists, numbers, ragged
from capsid.errors import DataError
from capsid.ragged import Ragged


@given(st.lists(st.lists(st.integers(-5, 5), max_size=4), max_size=6), st.data())
def test_rows_come_back(rows: list[list[int]], data: st.DataObject) -> None:
    column = lists(Ragged.from_rows(rows), np.int32)
    assert column.to_pylist() == rows
    assert ragged(column) == Ragged.from_rows(rows)
    assert ragged(column.cast(pa.large_list(pa.int32()))) == Ragged.from_rows(rows)
    start = data.draw(st.integers(0, len(rows)))
    assert ragged(column.slice(start)) == Ragged.from_rows(rows[start:])
    parts = pa.chunked_array([column.slice(0, start), column.slice(start)])
    assert ragged(parts) == Ragged.from_rows(rows)


@pytest.mark.parametrize("kind", ["int8", "uint16", "int32", "int64", "float32", "float64"])
def test_numbers_come_back(kind: str) -> None:
    values = np.arange(7).astype(kind)
    back = array(numbers(values[::2]).slice(1))
    assert back.dtype == kind
    assert back.tolist() == [2, 4, 6]


@pytest.mark.parametrize(
    "column", [pa.array([1, 2]), pa.array([[1], None]), pa.array([[1, None]]), pa.array([["a"]]), pa.array([[[1]]])]
)
def test_what_is_not_rows_of_numbers(column: pa.Array) -> None:
    with pytest.raises(DataError):
        ragged(column)


def test_pandas_is_not_loaded() -> None:
    code = """
import sys, numpy as np
from capsid.base.storage.parquet import array, lists, numbers, ragged
from capsid.ragged import Ragged
ragged(lists(Ragged.from_rows([[1], [2, 3]]), np.int32)), array(numbers(np.arange(3)))
sys.exit("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
