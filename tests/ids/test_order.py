from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import ragged_codes

from capsid.ids import order
from capsid.ids.order import column, group_numbers, lexicographic_order, proper_prefixes
from capsid.ragged import Ragged


@given(rows=ragged_codes(size=3), data=st.data())
def test_order_is_pythons_order_of_tuples(rows: list[list[int]], data: st.DataObject) -> None:
    priority = np.array(data.draw(st.lists(st.integers(-2, 2), min_size=len(rows), max_size=len(rows))))
    ragged = Ragged.from_rows(rows)
    assert lexicographic_order(ragged).tolist() == sorted(range(len(rows)), key=lambda i: (rows[i], i))
    wanted = sorted(range(len(rows)), key=lambda i: (rows[i], priority[i], i))
    assert lexicographic_order(ragged, priority).tolist() == wanted


@given(rows=st.lists(st.lists(st.integers(0, 2**31 - 5), min_size=1, max_size=5), min_size=1), data=st.data())
def test_packed_keys_and_lexsort_agree(rows: list[list[int]], data: st.DataObject) -> None:
    """Rows of up to five wide values, some of which fit 64 bits and some not."""
    rows = rows + data.draw(st.lists(st.sampled_from(rows), max_size=5))
    ragged = Ragged.from_rows(rows)
    with pytest.MonkeyPatch.context() as patch:
        packed = lexicographic_order(ragged)
        patch.setattr(order, "_packed_keys", lambda rows, width: None)
        np.testing.assert_array_equal(lexicographic_order(ragged), packed)


def test_both_ways_of_sorting_are_taken() -> None:
    wide = Ragged.from_rows([[2**30, 2**30, 2**30], [2, 2, 2]])
    assert order._packed_keys(wide, 3) is None
    assert order._packed_keys(Ragged.from_rows([[2**30, 2], [2, 2**30]]), 2) is not None


@given(rows=ragged_codes(size=3))
def test_groups_and_prefixes(rows: list[list[int]]) -> None:
    ragged = Ragged.from_rows(rows)
    distinct = sorted({tuple(r) for r in rows})
    assert group_numbers(ragged).tolist() == [distinct.index(tuple(r)) for r in rows]
    extended = [any(len(o) > len(r) and o[: len(r)] == r for o in rows) for r in rows]
    assert proper_prefixes(ragged).tolist() == extended


def test_columns_of_short_rows_are_absent() -> None:
    rows = Ragged.from_rows([[5, 6], [7]])
    assert column(rows, 0).tolist() == [5, 7]
    assert column(rows, 1).tolist() == [6, order.ABSENT]


def test_nothing_to_sort() -> None:
    empty = Ragged.from_rows([])
    assert len(lexicographic_order(empty)) == len(group_numbers(empty)) == len(proper_prefixes(empty)) == 0
