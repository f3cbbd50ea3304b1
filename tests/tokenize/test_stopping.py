"""Where ids end: prefix counts against a count by hand, lengths and causes against a loop, ids that are prefix-free."""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from worlds import shared_prefixes

from capsid.ids.order import SharedPrefixes, prefix_keys, unshared_lengths
from capsid.tokenize.base import CAUSES, Stops
from capsid.tokenize.capsules.catalogue import stop
from capsid.tokenize.capsules.settings import StopRules

SIZES = (2, 3, 2)
# Few values, so that they meet the thresholds exactly.
LEVELS = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


def codes(least: int = 1, most: int = 12, sizes: tuple[int, ...] = SIZES) -> st.SearchStrategy[np.ndarray]:
    row = st.tuples(*(st.integers(0, size - 1) for size in sizes))
    return st.lists(row, min_size=least, max_size=most).map(lambda rows: np.array(rows).reshape(-1, len(sizes)))


def levels(items: int) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.float64, (items, len(SIZES)), elements=LEVELS)


# --- counting ---


@given(codes(), codes(least=0), st.integers(0, 4), st.sampled_from(["codes", "items"]))
def test_shared_prefixes_are_counted(
    catalogue: np.ndarray, others: np.ndarray, max_sharing: int, of: Literal["codes", "items"]
) -> None:
    shared = SharedPrefixes.count(catalogue, SIZES, max_sharing, of)
    by_hand = shared_prefixes(catalogue.tolist(), max_sharing, of)
    asked = np.concatenate([catalogue, others])
    expected = [[tuple(row[: d + 1]) in by_hand for d in range(len(SIZES))] for row in asked.tolist()]
    np.testing.assert_array_equal(shared.mask(asked), np.array(expected))
    assert sum(map(len, shared.keys)) == len(by_hand)


def test_equal_codes_count_once() -> None:
    same = np.array([[0, 1, 1]] * 9)
    assert not SharedPrefixes.count(same, SIZES, 1).mask(same).any()
    assert SharedPrefixes.count(same, SIZES, 1, of="items").mask(same).all(), "unless items are counted"
    two = np.array([[0, 1, 1], [0, 1, 0]])
    assert SharedPrefixes.count(two, SIZES, 1).mask(two).tolist() == [[True, True, False]] * 2
    assert not SharedPrefixes.count(two, SIZES, 2).mask(two).any()


@given(codes(), codes())
def test_keys_tell_prefixes_apart(left: np.ndarray, right: np.ndarray) -> None:
    one, other = prefix_keys(left), prefix_keys(right)
    for (i, a), (j, b) in itertools.product(enumerate(left.tolist()), enumerate(right.tolist())):
        for depth in range(len(SIZES)):
            assert (one[i, depth] == other[j, depth]) == (a[: depth + 1] == b[: depth + 1])


def test_any_number_of_codes_can_be_told_apart() -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.integers(0, 4, size=(20_000, 9)), rng.integers(0, 2**15, size=(20_000, 9))])
    keys = prefix_keys(rows.astype(np.int32))
    for depth in (0, 3, 8):
        assert len(np.unique(keys[:, depth])) == len(np.unique(rows[:, : depth + 1], axis=0))
    assert SharedPrefixes.count(rows, (2**15,) * 9, 1).mask(rows)[:, 0].any()


# --- stopping ---


def stop_by_hand(
    confidence_ND: np.ndarray, residual_ND: np.ndarray, shared_ND: np.ndarray, rules: StopRules
) -> list[tuple[int, str]]:
    out = []
    for q_D, r_D, shared_D in zip(confidence_ND, residual_ND, shared_ND):
        end, blocked = (len(q_D), "cap"), False
        for depth, (q, r, shared) in enumerate(zip(q_D, r_D, shared_D), start=1):
            rule = "confidence" if q >= rules.confidence else "residual" if r <= rules.residual else ""
            if rule:
                if not shared:
                    end = depth, "prefix" if blocked else rule
                    break
                blocked = True
        out.append(end)
    return out


def named(stops: Stops) -> list[tuple[int, str]]:
    return [(int(length), CAUSES[cause]) for length, cause in zip(stops.lengths, stops.causes)]


@given(st.data(), LEVELS, LEVELS)
def test_lengths_and_causes_are_those_of_a_loop(data: st.DataObject, confidence: float, residual: float) -> None:
    q, r = data.draw(levels(6)), data.draw(levels(6))
    shared = data.draw(hnp.arrays(bool, (6, len(SIZES))))
    rules = StopRules(confidence, residual, max_sharing=1)
    assert named(stop(q, r, shared, rules)) == stop_by_hand(q, r, shared, rules)


FREE, BLOCKED = [False, False, False], [True, True, False]
RULES = StopRules(confidence=0.8, residual=0.1)


@pytest.mark.parametrize(
    ("q", "r", "shared", "rules", "expected"),
    [
        ([0.9, 0.0, 0.0], [0.05, 1.0, 1.0], FREE, RULES, (1, "confidence")),  # both fire: confidence is named
        ([0.1, 0.8, 0.0], [1.0, 1.0, 1.0], FREE, RULES, (2, "confidence")),  # thresholds belong to the rules
        ([0.1, 0.1, 0.9], [0.5, 0.1, 0.0], FREE, RULES, (2, "residual")),
        ([0.1, 0.1, 0.9], [0.5, 0.5, 0.5], FREE, RULES, (3, "confidence")),  # at the cap, but a rule fired
        ([0.1, 0.1, 0.1], [0.5, 0.5, 0.05], FREE, RULES, (3, "residual")),
        ([0.1, 0.1, 0.1], [0.5, 0.5, 0.5], FREE, RULES, (3, "cap")),
        ([0.9, 0.9, 0.9], [0.5, 0.5, 0.5], BLOCKED, RULES, (3, "prefix")),  # would have ended at once
        ([0.1, 0.1, 0.9], [0.5, 0.5, 0.5], BLOCKED, RULES, (3, "confidence")),  # shared, but no rule fired there
        ([0.9, 0.1, 0.1], [0.5, 0.5, 0.5], BLOCKED, RULES, (3, "cap")),  # blocked, and nothing ended it later
    ],
)
def test_causes(
    q: list[float], r: list[float], shared: list[bool], rules: StopRules, expected: tuple[int, str]
) -> None:
    assert named(stop(np.array([q]), np.array([r]), np.array([shared]), rules)) == [expected]


@given(codes(), st.data(), LEVELS, LEVELS)
def test_without_a_limit_it_is_the_papers_rule(
    catalogue: np.ndarray, data: st.DataObject, tau: float, epsilon: float
) -> None:
    """Paper, Eq. 8: the least depth where one of the rules holds, or the cap."""
    q, r = data.draw(levels(len(catalogue))), data.draw(levels(len(catalogue)))
    shared = SharedPrefixes.count(catalogue, SIZES, 0)
    stops = stop(q, r, shared.mask(catalogue), StopRules(tau, epsilon, max_sharing=0))
    for row, length in enumerate(stops.lengths):
        holds = [l for l in (1, 2, 3) if q[row, l - 1] >= tau or r[row, l - 1] <= epsilon or l == 3]  # noqa: E741
        assert length == min(holds)
    assert set(stops.shares(with_prefix=False)) == {"confidence", "residual", "cap"}
    assert sum(stops.shares(with_prefix=False).values()) == pytest.approx(1)


@given(codes(), st.integers(1, 3), st.integers(1, 4))
def test_unshared_lengths_are_those_of_a_loop(catalogue: np.ndarray, crowd: int, shortest: int) -> None:
    shared = SharedPrefixes.count(catalogue, SIZES, crowd, of="items")
    mask = shared.mask(catalogue).tolist()
    by_hand = [next((d + 1 for d in range(3) if d >= shortest - 1 and not row[d]), 3) for row in mask]
    assert unshared_lengths(catalogue, shared, shortest).tolist() == by_hand


# --- ids ---


def ids_of(catalogue: np.ndarray, lengths: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(row[:length]) for row, length in zip(catalogue.tolist(), lengths)}


def prefix_free(ids: set[tuple[int, ...]]) -> bool:
    return not any(a == b[: len(a)] for a in ids for b in ids if a != b)


@given(codes(), codes(), st.integers(1, 4), st.data())
def test_ids_are_prefix_free_for_new_items_too(
    old: np.ndarray, new: np.ndarray, max_sharing: int, data: st.DataObject
) -> None:
    """A confidence of 0 lets the prefixes alone decide, and a prefix decides alike for all who have it."""
    both = np.concatenate([old, new])
    q, r = data.draw(levels(len(both))), data.draw(levels(len(both)))
    shared = SharedPrefixes.count(old, SIZES, max_sharing)
    stops = stop(q, r, shared.mask(both), StopRules(0.0, 0.0, max_sharing))
    ids = ids_of(both, stops.lengths)
    assert prefix_free(ids)
    fitted = ids_of(old, stops.lengths[: len(old)])
    # Each id stands for at most `max_sharing` codes of the fitted catalogue.
    assert all(sum(row[: len(i)] == i for row in set(map(tuple, old.tolist()))) <= max_sharing for i in fitted)


def test_a_confidence_above_zero_is_not_prefix_free() -> None:
    """The property above does say something: the item's own confidence breaks it."""
    pair = np.array([[0, 1, 1], [0, 1, 0]])
    q, r = np.array([[0.9, 0.9, 0.9], [0.1, 0.9, 0.9]]), np.ones((2, 3))
    stops = stop(q, r, SharedPrefixes.count(pair, SIZES, 2).mask(pair), StopRules(0.5, 0.0, max_sharing=2))
    assert not prefix_free(ids_of(pair, stops.lengths))


@given(codes(), codes(), st.integers(0, 3), st.data())
def test_old_ids_stay(old: np.ndarray, new: np.ndarray, max_sharing: int, data: st.DataObject) -> None:
    both = np.concatenate([old, new])
    q, r = data.draw(levels(len(both))), data.draw(levels(len(both)))
    rules, shared, n = StopRules(0.5, 0.25, max_sharing), SharedPrefixes.count(old, SIZES, max_sharing), len(old)
    before = stop(q[:n], r[:n], shared.mask(old), rules)
    after = stop(q, r, shared.mask(both), rules)
    assert named(after)[:n] == named(before)
    assert named(stop(q[n:], r[n:], shared.mask(new), rules)) == named(after)[n:]


def test_a_new_count_would_change_old_ids() -> None:
    """Why the counts are frozen: a new neighbour would make an old prefix shared."""
    old, both = np.array([[0, 1, 1]]), np.array([[0, 1, 1], [0, 0, 0]])
    sure, rules = np.ones((2, 3)), StopRules(0.0, 0.0, max_sharing=1)
    frozen = stop(sure, sure, SharedPrefixes.count(old, SIZES, 1).mask(both), rules)
    recounted = stop(sure, sure, SharedPrefixes.count(both, SIZES, 1).mask(both), rules)
    assert (frozen.lengths[0], recounted.lengths[0]) == (1, 2)


def test_no_items() -> None:
    nothing = np.zeros((0, 3))
    stops = stop(nothing, nothing, SharedPrefixes.none(SIZES).mask(nothing.astype(np.int64)), RULES)
    assert len(stops.lengths) == 0
    assert set(stops.shares(with_prefix=True).values()) == {0.0}
