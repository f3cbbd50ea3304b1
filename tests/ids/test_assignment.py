"""The assignment of rows to columns: the least total cost of all, by brute force and by an independent solver."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from capsid.ids.assignment import cheapest_columns


def total(costs_NK: np.ndarray, columns_N: np.ndarray) -> float:
    rows = np.flatnonzero(columns_N >= 0)
    return float(costs_NK[rows, columns_N[rows]].sum())


def least_by_hand(costs_NK: np.ndarray) -> float:
    """All assignments tried."""
    wide_NK = costs_NK if costs_NK.shape[0] <= costs_NK.shape[1] else costs_NK.T
    rows = np.arange(len(wide_NK))
    tried = itertools.permutations(range(wide_NK.shape[1]), len(rows))
    return min(float(wide_NK[rows, list(columns)].sum()) for columns in tried)


def matrix(seed: int, rows: int, columns: int, levels: int) -> np.ndarray:
    """Few levels make ties; costs below 0 are costs too."""
    rng = np.random.default_rng(seed)
    return rng.integers(-levels, levels + 1, size=(rows, columns)) / 4


@given(seed=st.integers(0, 10_000), rows=st.integers(0, 5), columns=st.integers(1, 5), levels=st.integers(0, 40))
def test_least_of_all_assignments(seed: int, rows: int, columns: int, levels: int) -> None:
    costs = matrix(seed, rows, columns, levels)
    found = cheapest_columns(costs)
    assert len(found) == rows
    used = found[found >= 0]
    assert len(used) == len(set(used.tolist())) == min(rows, columns)
    assert total(costs, found) == pytest.approx(least_by_hand(costs))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (60, 60), (40, 90), (90, 40), (300, 7)])
def test_as_cheap_as_another_solver(rows: int, columns: int) -> None:
    for seed in range(3):
        costs = np.random.default_rng(seed).normal(size=(rows, columns)) ** 3
        mine, theirs = cheapest_columns(costs), linear_sum_assignment(costs)
        assert total(costs, mine) == pytest.approx(float(costs[theirs].sum()), rel=1e-12)
        expected = np.full(rows, -1)
        expected[theirs[0]] = theirs[1]
        np.testing.assert_array_equal(mine, expected, err_msg="without ties there is one answer")


def test_nothing_to_assign() -> None:
    assert cheapest_columns(np.zeros((0, 3))).tolist() == []
    assert cheapest_columns(np.zeros((2, 0))).tolist() == [-1, -1]
