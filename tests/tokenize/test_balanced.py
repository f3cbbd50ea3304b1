"""Clusters of bounded size: loads, the plain loop as a twin, and the exact optimum beside the greedy answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsid.errors import ConfigError
from capsid.ids.assignment import cheapest_columns
from capsid.tokenize.kmeans import assign, balanced_kmeans, squared_distances

SEEDS = st.integers(0, 10_000)


def costs(seed: int, rows: int, clusters: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(size=(rows, clusters))


def one_by_one(costs_NK: np.ndarray, most: float, weights: np.ndarray) -> list[int]:
    """The rule row by row, without any array."""
    clusters = range(costs_NK.shape[1])

    def regret(row: int) -> float:
        first, *rest = sorted(costs_NK[row])
        return rest[0] - first if rest else 0.0

    loads, labels = [0.0 for _ in clusters], [0] * len(costs_NK)
    for row in sorted(range(len(costs_NK)), key=lambda r: (weights[r] <= most, -regret(r), r)):
        fits = [k for k in clusters if loads[k] + min(weights[row], most) <= most]
        k = min(fits, key=lambda c: costs_NK[row, c]) if fits else min(clusters, key=lambda c: loads[c])
        loads[k] += weights[row]
        labels[row] = k
    return labels


def exact(costs_NK: np.ndarray, most: int) -> float:
    """Least total cost with at most `most` rows to a cluster: one column for every place."""
    places = np.repeat(costs_NK, most, axis=1)
    return float(places[np.arange(len(places)), cheapest_columns(places)].sum())


def total(costs_NK: np.ndarray, labels_N: np.ndarray) -> float:
    return float(costs_NK[np.arange(len(labels_N)), labels_N].sum())


@given(seed=SEEDS, rows=st.integers(1, 30), clusters=st.integers(1, 6), slack=st.sampled_from([1.0, 1.3, 3.0]))
def test_the_plain_loop_is_its_twin(seed: int, rows: int, clusters: int, slack: float) -> None:
    costs_NK = costs(seed, rows, clusters)
    most = math.ceil(slack * rows / clusters)
    labels_N = assign(costs_NK, most)
    assert labels_N.tolist() == one_by_one(costs_NK, most, np.ones(rows))
    assert np.bincount(labels_N).max() <= most


@given(seed=SEEDS, rows=st.integers(1, 40), clusters=st.integers(1, 6), cap=st.sampled_from([1.0, 1.05, 2.0]))
def test_loads_stay_within_capacity_but_for_single_heavy_items(seed: int, rows: int, clusters: int, cap: float) -> None:
    weights = np.random.default_rng(seed).zipf(1.7, size=rows).clip(max=1000).astype(float)
    most = cap * weights.sum() / clusters
    costs_NK = costs(seed, rows, clusters)
    labels_N = assign(costs_NK, most, weights_N=weights)
    assert labels_N.tolist() == one_by_one(costs_NK, most, weights)
    loads_K = np.bincount(labels_N, weights, minlength=clusters)
    for k in np.flatnonzero(loads_K > most):
        own = weights[labels_N == k]
        # A heavy item, or one for which the room was scattered: without it the cluster was below the mean.
        assert own.max() > most or loads_K[k] <= weights.sum() / clusters + own.max()
    light = [k for k in range(clusters) if (weights[labels_N == k] > most).any()]
    if len(light) < clusters:
        assert all((labels_N == k).sum() == 1 for k in light), "a heavy item is alone where clusters suffice"


@given(seed=SEEDS, rows=st.integers(1, 40), clusters=st.integers(1, 8))
def test_sizes_that_differ_by_one_at_most(seed: int, rows: int, clusters: int) -> None:
    labels_N = assign(costs(seed, rows, clusters), -(-rows // clusters), least=rows // clusters)
    assert np.ptp(np.bincount(labels_N, minlength=clusters)) <= 1


@given(seed=SEEDS, rows=st.integers(6, 40), least=st.integers(0, 2), most=st.integers(14, 20))
def test_sizes_between_bounds(seed: int, rows: int, least: int, most: int) -> None:
    skewed = costs(seed, rows, 3) + np.array([0, 5, 5])
    sizes = np.bincount(assign(skewed, most, least=least), minlength=3)
    assert sizes.min() >= least
    assert sizes.max() <= most


@given(seed=SEEDS, rows=st.integers(2, 18), clusters=st.integers(2, 4))
def test_no_better_than_the_exact_assignment_and_not_much_worse(seed: int, rows: int, clusters: int) -> None:
    costs_NK, most = costs(seed, rows, clusters), -(-rows // clusters)
    found, best = total(costs_NK, assign(costs_NK, most)), exact(costs_NK, most)
    assert best <= found + 1e-9
    assert found <= best + 0.35 * rows, "random labels would lose about half of the range each"


def test_without_a_bound_everybody_gets_the_cheapest() -> None:
    costs_NK = costs(0, 50, 5)
    np.testing.assert_array_equal(assign(costs_NK), costs_NK.argmin(1))
    assert assign(np.zeros((0, 3)), 1).shape == (0,)


@pytest.mark.parametrize(("most", "least"), [(1, 0), (9, 4)])
def test_impossible_bounds(most: int, least: int) -> None:
    with pytest.raises(ConfigError, match=rf"10 items of weight 10 do not fit in 3 clusters of {least} to {most}"):
        assign(costs(0, 10, 3), most, least=least)


def test_balanced_clusters_of_a_planted_world_are_found() -> None:
    """Three clouds of 20: the exact optimum, from centres that all lie in the first cloud."""
    rng = np.random.default_rng(0)
    truth_N = np.repeat(np.arange(3), 20)
    x_ND = (10 * np.eye(3)[truth_N] + rng.normal(size=(60, 3))).astype(np.float32)
    found = balanced_kmeans(x_ND, x_ND[[0, 1, 2]], 20, least=20)
    assert all(len(set(found.labels_N[truth_N == t])) == 1 for t in range(3))
    assert total(squared_distances(x_ND, found.centres_KD), found.labels_N) == pytest.approx(
        exact(squared_distances(x_ND, found.centres_KD), 20)
    )
    for k in range(3):
        np.testing.assert_allclose(found.centres_KD[k], x_ND[found.labels_N == k].mean(0), rtol=1e-5)


def test_an_empty_cluster_keeps_its_centre() -> None:
    x_ND = np.ones((4, 2), dtype=np.float32)
    found = balanced_kmeans(x_ND, np.array([[1, 1], [50, 50]], dtype=np.float32))
    assert set(found.labels_N) == {0}
    np.testing.assert_array_equal(found.centres_KD, [[1, 1], [50, 50]])


def test_distances_against_a_plain_sum() -> None:
    rng = np.random.default_rng(0)
    x_ND, c_KD = rng.normal(size=(1500, 4)).astype(np.float32), rng.normal(size=(3, 4)).astype(np.float32)
    wanted = ((x_ND[:, None] - c_KD) ** 2).sum(-1)
    np.testing.assert_allclose(squared_distances(x_ND, c_KD), wanted, rtol=1e-4, atol=1e-5)
