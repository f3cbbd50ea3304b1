from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsid.ragged import Ragged, offsets_of

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


def drawn_slices(rows: list[list[int]], data: st.DataObject) -> list[tuple[int, int, int]]:
    """Some (row, start, length) that lie inside their rows."""
    out = []
    for row in data.draw(st.lists(st.sampled_from(range(len(rows))), max_size=8)) if rows else []:
        start = data.draw(st.integers(0, len(rows[row])))
        out.append((row, start, data.draw(st.integers(0, len(rows[row]) - start))))
    return out


@given(lengths=st.lists(st.integers(0, 5), max_size=8))
def test_offsets_are_the_sums_of_what_comes_before(lengths: list[int]) -> None:
    assert offsets_of(lengths).tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    assert offsets_of(np.array(lengths, dtype=np.int32)).dtype == np.int64


@given(rows=ROWS)
def test_lengths_cut_values_into_the_same_rows(rows: list[list[int]]) -> None:
    ragged = Ragged.from_rows(rows)
    assert Ragged.from_lengths(ragged.values, ragged.lengths) == ragged


@given(rows=st.lists(st.tuples(st.integers(-3, 9), st.integers(0, 4)), max_size=8), start=st.integers(-3, 9))
def test_ranges_count_up_from_their_starts(rows: list[tuple[int, int]], start: int) -> None:
    starts, lengths = (np.array([r[i] for r in rows], dtype=np.int64) for i in range(2))
    assert [r.tolist() for r in Ragged.ranges(starts, lengths)] == [list(range(s, s + n)) for s, n in rows]
    assert [r.tolist() for r in Ragged.ranges(start, lengths)] == [list(range(start, start + n)) for _, n in rows]


@given(rows=st.lists(st.integers(0, 5), max_size=20), more=st.integers(0, 3))
def test_grouped_values_keep_their_order(rows: list[int], more: int) -> None:
    count = max(rows, default=-1) + 1 + more
    values = np.arange(100, 100 + len(rows))
    grouped = Ragged.grouped(values, np.array(rows, dtype=np.int64), count)
    assert [r.tolist() for r in grouped] == [[100 + i for i, own in enumerate(rows) if own == r] for r in range(count)]


@given(rows=ROWS)
def test_every_value_knows_its_row_and_position(rows: list[list[int]]) -> None:
    ragged = Ragged.from_rows(rows)
    assert ragged.row_numbers.tolist() == [i for i, row in enumerate(rows) for _ in row]
    assert ragged.positions.tolist() == [p for row in rows for p in range(len(row))]


@given(rows=ROWS, data=st.data())
def test_slices_are_python_slices(rows: list[list[int]], data: st.DataObject) -> None:
    chosen = drawn_slices(rows, data)
    which, starts, lengths = (np.array([c[i] for c in chosen], dtype=np.int64) for i in range(3))
    cut = Ragged.from_rows(rows).slices(starts, lengths, which)
    assert cut == Ragged.from_rows([rows[r][s : s + n] for r, s, n in chosen])


@given(rows=ROWS, most=st.integers(0, 6))
def test_first_and_last_cut_long_rows_only(rows: list[list[int]], most: int) -> None:
    ragged = Ragged.from_rows(rows)
    assert ragged.first(most) == Ragged.from_rows([r[:most] for r in rows])
    assert ragged.last(most) == Ragged.from_rows([r[max(len(r) - most, 0) :] for r in rows])


@given(rows=ROWS, data=st.data())
def test_keep_and_repeat_count_inside_rows(rows: list[list[int]], data: st.DataObject) -> None:
    ragged = Ragged.from_rows(rows)
    number = len(ragged.values)
    counts = data.draw(st.lists(st.integers(0, 3), min_size=number, max_size=number))
    slow = [[v for v, c in zip(row, counts[start:]) for _ in range(c)] for row, start in zip(rows, ragged.offsets)]
    assert ragged.repeat(np.array(counts, dtype=np.int64)) == Ragged.from_rows(slow)
    mask = np.array(counts, dtype=np.int64) > 0
    kept = [[v for v, c in zip(row, counts[start:]) if c] for row, start in zip(rows, ragged.offsets)]
    assert ragged.keep(mask) == Ragged.from_rows(kept)


@given(rows=ROWS, data=st.data())
def test_push_lengthens_the_chosen_rows_by_one(rows: list[list[int]], data: st.DataObject) -> None:
    ragged = Ragged.from_rows(rows)
    values = np.arange(len(rows), dtype=np.int32) + 7
    assert ragged.push(values) == Ragged.from_rows([[*row, 7 + i] for i, row in enumerate(rows)])
    chosen = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    pushed = ragged.push(1, np.array(chosen, dtype=bool))
    assert pushed == Ragged.from_rows([[*row, 1] if more else row for row, more in zip(rows, chosen)])


@given(rows=ROWS)
def test_sums_of_rows_also_of_empty_ones(rows: list[list[int]]) -> None:
    ragged = Ragged.from_rows(rows)
    assert ragged.sums().tolist() == [sum(r) for r in rows]
    beside = np.arange(2 * len(ragged.values), dtype=np.float64).reshape(-1, 2)
    sums = ragged.sums(beside)
    assert sums.shape == (len(rows), 2)
    slow = [beside[a:b].sum(0) for a, b in zip(ragged.offsets, ragged.offsets[1:])]
    assert np.array_equal(sums, np.array(slow).reshape(-1, 2))
