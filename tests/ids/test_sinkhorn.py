"""Balanced plans: their sums, their slow twin, and who is told apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsid.ids import assignment as sinkhorn
from capsid.ids.assignment import balanced_columns, plan_by_logarithms, transport_plan

SEEDS = st.integers(0, 10_000)
SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 9))


def costs(seed: int, shape: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 5, size=shape)


def crowd() -> tuple[np.ndarray, np.ndarray]:
    """64 places on a line, all near the first of four codes, and their costs."""
    x_N = np.random.default_rng(0).uniform(-0.1, 0.1, size=64)
    return x_N, (x_N[:, None] - np.linspace(0, 1, 4)) ** 2


def plan_step_by_step(costs_NK: np.ndarray, epsilon: float, iterations: int) -> np.ndarray:
    """The textbook loop on the whole matrix."""
    rows, columns = costs_NK.shape
    middle, half = (costs_NK.max() + costs_NK.min()) / 2, np.ptp(costs_NK) / 2 or 1.0
    plan_NK = np.exp(-(costs_NK - middle) / half / epsilon)
    for _ in range(iterations):
        plan_NK = plan_NK / plan_NK.sum(1, keepdims=True) / rows
        plan_NK = plan_NK / plan_NK.sum(0, keepdims=True) / columns
    return plan_NK


@given(seed=SEEDS, shape=SHAPES)
def test_rows_and_columns_carry_equal_mass(seed: int, shape: tuple[int, int]) -> None:
    plan_NK = transport_plan(costs(seed, shape), epsilon=0.5, iterations=200)
    assert (plan_NK >= 0).all()
    np.testing.assert_allclose(plan_NK.sum(0), 1 / shape[1], rtol=1e-9)
    np.testing.assert_allclose(plan_NK.sum(1), 1 / shape[0], rtol=1e-3)


@given(seed=SEEDS, shape=SHAPES, epsilon=st.sampled_from([0.02, 0.2, 1.0]))
def test_factors_logarithms_and_the_textbook_agree(seed: int, shape: tuple[int, int], epsilon: float) -> None:
    costs_NK = costs(seed, shape)
    found = transport_plan(costs_NK, epsilon=epsilon, iterations=30)
    np.testing.assert_allclose(found, plan_step_by_step(costs_NK, epsilon, 30), rtol=1e-6, atol=1e-12)
    slow = plan_by_logarithms(sinkhorn._scaled(costs_NK) / epsilon, 30)
    np.testing.assert_allclose(found, slow, rtol=1e-6, atol=1e-12)


@given(seed=SEEDS, scale=st.sampled_from([1e-3, 1.0, 1e4]), shift=st.sampled_from([-10.0, 0.0, 50.0]))
def test_unit_and_zero_of_the_costs_do_not_matter(seed: int, scale: float, shift: float) -> None:
    costs_NK = costs(seed, (6, 4))
    plan_NK = transport_plan(costs_NK, epsilon=0.1, iterations=20)
    np.testing.assert_allclose(transport_plan(scale * costs_NK + shift, epsilon=0.1, iterations=20), plan_NK, atol=1e-6)


def test_a_tiny_epsilon_leaves_the_number_range_of_factors_but_not_the_answer() -> None:
    costs_NK = crowd()[1]
    for epsilon in (0.003, 1e-4, 1e-6):
        plan_NK = transport_plan(costs_NK, epsilon=epsilon, iterations=50)
        assert np.isfinite(plan_NK).all()
        np.testing.assert_allclose(plan_NK.sum(0), 1 / 4, rtol=1e-6)
        np.testing.assert_allclose(
            plan_NK, plan_by_logarithms(sinkhorn._scaled(costs_NK) / epsilon, 50), rtol=1e-5, atol=1e-12
        )
    wrong_NK = sinkhorn._by_factors(sinkhorn._scaled(costs_NK) / 1e-6, 50)
    assert not np.allclose(wrong_NK, plan_NK), "the twin was needed"


def test_a_crowd_around_one_code_is_spread_over_all() -> None:
    """All rows are nearest to code 0; a balanced choice gives every code its share."""
    x_N, costs_NK = crowd()
    assert (costs_NK.argmin(1) == 0).all()
    chosen_N = balanced_columns(costs_NK, epsilon=0.003, iterations=500)
    assert np.abs(np.bincount(chosen_N, minlength=4) - 16).max() <= 1
    # In order: the rows that lie farthest to the right get the codes farthest to the right.
    assert (np.diff(chosen_N[np.argsort(x_N)]) >= 0).all()


def test_equal_rows_get_equal_codes_and_no_rows_none() -> None:
    twins = np.array([[0.0, 1.0, 2.0]] * 3)
    assert len(set(balanced_columns(twins, epsilon=0.003, iterations=50))) == 1
    assert len(set(balanced_columns(np.zeros((2, 3)), epsilon=0.003, iterations=50))) == 1
    assert balanced_columns(np.zeros((0, 3)), epsilon=0.003, iterations=50).shape == (0,)


@pytest.mark.parametrize("difference", [1e-3, 1e-6])
def test_near_twins_part(difference: float) -> None:
    near = np.array([[0.0, 1.0, 2.0], [0.0, 1.0 - difference, 2.0 + difference]])
    chosen = balanced_columns(near, epsilon=0.003, iterations=50)
    assert chosen[0] != chosen[1]
