"""Metrics against slow twins that count through ranked lists."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from capsid.evaluate.metrics import (
    METRICS,
    Metric,
    TargetRanks,
    coverage,
    expected_gains,
    exposure,
    gains,
    ndcg_recall_slope,
    of_lists,
    per_user,
)


def slow_gain(metric: str, ranked: list[int], target: int, k: int) -> float:
    """By the definitions, from a list of items: DCG over ideal DCG, with one relevant item."""
    relevant = [1.0 if item == target else 0.0 for item in ranked[:k]]
    if metric == "recall":
        return sum(relevant) / 1
    if metric == "ndcg":
        return sum(r / math.log2(i + 2) for i, r in enumerate(relevant)) / (1 / math.log2(2))
    return max((r / (i + 1) for i, r in enumerate(relevant)), default=0.0)


@given(rank=st.integers(0, 15), k=st.integers(1, 12), metric=st.sampled_from(list(METRICS)))
def test_gains_are_the_definitions(rank: int, k: int, metric: str) -> None:
    ranked = list(range(1, 16))
    assert gains(metric, np.array([rank]), k)[0] == pytest.approx(slow_gain(metric, ranked, rank, k))


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    place=st.integers(0, 3),
    k=st.integers(1, 9),
    metric=st.sampled_from(list(METRICS)),
)
def test_expected_is_the_mean_over_all_orders_of_the_bucket(sizes: list[int], place: int, k: int, metric: str) -> None:
    assume(place < len(sizes))
    before, size = sum(sizes[:place]), sizes[place]
    own = list(range(before, before + size))
    lists = [[*range(before), *order, *range(before + size, sum(sizes))] for order in itertools.permutations(own)]
    slow = np.mean([slow_gain(metric, ranked, own[0], k) for ranked in lists])
    ranks = TargetRanks(np.array([0]), np.array([place + 1]), np.array([before]), np.array([size]))
    assert expected_gains(metric, ranks, k)[0] == pytest.approx(slow)


def test_a_target_that_was_not_found_gains_nothing() -> None:
    nothing = TargetRanks(*(np.zeros(1, dtype=np.int64) for _ in range(4)))
    assert all(v[0] == 0 for v in per_user(nothing, (1, 5)).values())


def test_the_three_readings_are_ordered_and_named() -> None:
    """One bucket of four after three items; the target stands third in it."""
    ranks = TargetRanks(np.array([6]), np.array([2]), np.array([3]), np.array([4]))
    values = {name: float(v[0]) for name, v in per_user(ranks, (5, 10)).items()}
    assert values["recall@5"] == 0.0
    assert values["recall@5:expected"] == pytest.approx(0.5)
    assert values["recall@5:optimistic"] == 1.0
    assert values["ndcg@10"] == pytest.approx(1 / math.log2(7))
    assert values["ndcg@10:expected"] == pytest.approx(np.mean([1 / math.log2(r + 1) for r in (4, 5, 6, 7)]))
    assert values["mrr@10:optimistic"] == 0.5
    assert len(values) == 2 * 3 * 3


@given(ranks=st.lists(st.integers(0, 30), min_size=1, max_size=200))
def test_ndcg_and_recall_are_bound_to_each_other(ranks: list[int]) -> None:
    """Ranks 6 to 10 gain between 1 / log2(11) and 1 / log2(7) of NDCG each ."""
    array = np.array(ranks)
    mean = {f"{m}{k}": float(gains(m, array, k).mean()) for m in ("recall", "ndcg") for k in (5, 10)}
    slope = ndcg_recall_slope(mean["recall5"], mean["recall10"], mean["ndcg5"], mean["ndcg10"])
    if not any(6 <= r <= 10 for r in ranks):
        assert slope is None
    else:
        assert slope is not None
        assert 0.289 <= slope <= 0.3563


def test_unknown_metrics_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown metric 'map'"):
        gains("map", np.array([1]), 5)


def test_coverage_and_exposure_by_hand() -> None:
    shown = np.array([[0, 1, 2], [0, 1, -1], [0, 4, -1]])
    counts = np.array([9, 8, 7, 1, 1])
    assert coverage(shown, counts) == pytest.approx(4 / 5)
    assert exposure(shown, counts) == pytest.approx({"head": 3 / 7, "torso": 3 / 7, "tail": 1 / 7})
    nothing = np.full((2, 2), -1)
    assert coverage(nothing, counts) == 0.0
    assert exposure(nothing, counts) == {"head": 0.0, "torso": 0.0, "tail": 0.0}
    assert of_lists(shown, counts, 1) == {"coverage@1": 1 / 5, "exposure@1": {"head": 1.0, "torso": 0.0, "tail": 0.0}}


def test_a_new_metric_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "first", Metric("first", "First", "a hit at rank 1 only", lambda ranks: ranks == 1))
    ranks = TargetRanks(np.array([1, 2]), np.array([1, 1]), np.array([0, 0]), np.array([2, 2]))
    values = per_user(ranks, (5,))
    assert values["first@5"].tolist() == [1.0, 0.0]
    assert values["first@5:expected"].tolist() == [0.5, 0.5]
    assert values["first@5:optimistic"].tolist() == [1.0, 1.0]
