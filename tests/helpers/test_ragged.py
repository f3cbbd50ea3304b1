from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsid.ragged import Ragged

ROWS = st.lists(st.lists(st.integers(-5, 70_000), max_size=5), max_size=12)


@given(rows=ROWS)
def test_a_ragged_is_a_list_of_lists(rows: list[list[int]]) -> None:
    ragged = Ragged.from_rows(rows)
    assert len(ragged) == len(rows)
    assert [r.tolist() for r in ragged] == rows
    assert ragged.lengths.tolist() == [len(r) for r in rows]
    assert ragged.values.dtype == np.int32
    assert [ragged[-i - 1].tolist() for i in range(len(rows))] == rows[::-1]


@given(rows=ROWS)
def test_dense_fills_the_ends_and_comes_back(rows: list[list[int]]) -> None:
    ragged = Ragged.from_rows(rows)
    dense = ragged.dense(fill=-9)
    assert dense.shape == (len(rows), max(map(len, rows), default=0))
    for row, values in zip(dense.tolist(), rows):
        assert row == values + [-9] * (dense.shape[1] - len(values))
    assert Ragged.from_dense(dense, ragged.lengths) == ragged


@given(rows=ROWS, data=st.data())
def test_take_is_indexing(rows: list[list[int]], data: st.DataObject) -> None:
    picks = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20)) if rows else []
    taken = Ragged.from_rows(rows).take(np.array(picks, dtype=np.int64))
    assert taken == Ragged.from_rows([rows[p] for p in picks])


@given(left=ROWS, right=ROWS)
def test_append_is_concatenation(left: list[list[int]], right: list[list[int]]) -> None:
    both = Ragged.from_rows(left).append(Ragged.from_rows(right, np.int64))
    assert both == Ragged.from_rows(left + right)
    assert both.values.dtype == np.int32


def test_equal_values_in_other_rows_are_not_equal() -> None:
    assert Ragged.from_rows([[1, 2], [3]]) != Ragged.from_rows([[1], [2, 3]])
    assert Ragged.from_rows([[1]]) != [[1]]
    with pytest.raises(TypeError):
        hash(Ragged.from_rows([[1]]))


def test_a_row_that_is_not_there() -> None:
    with pytest.raises(IndexError):
        Ragged.from_rows([[1]])[1]
