"""Cuts and orders: the same items, inside their own rows, as often as asked."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsid.data.augment import Augment
from capsid.errors import ConfigError
from capsid.ragged import Ragged

ROWS = st.lists(st.lists(st.integers(0, 30), max_size=9), min_size=1, max_size=8)


def numbered(rows: list[list[int]]) -> Ragged:
    """Rows whose values are all different, so that every item can be followed."""
    ends = np.cumsum([0] + [len(r) for r in rows])
    return Ragged.from_rows([list(range(a, b)) for a, b in itertools.pairwise(ends)], np.int64)


@given(rows=ROWS, seed=st.integers(0, 99))
def test_a_crop_is_a_stretch_of_its_row(rows: list[list[int]], seed: int) -> None:
    given_rows = numbered(rows)
    out = Augment(crop=1.0).apply(given_rows, np.random.default_rng(seed))
    for before, after in zip(given_rows, out):
        assert min(len(before), 2) <= len(after) <= len(before)
        assert after.tolist() == list(range(after[0], after[0] + len(after))) if len(after) else True
        assert set(after.tolist()) <= set(before.tolist())


@given(rows=ROWS, seed=st.integers(0, 99), crop=st.sampled_from([0.0, 0.5]))
def test_a_shuffle_keeps_the_items_of_a_row(rows: list[list[int]], seed: int, crop: float) -> None:
    given_rows = numbered(rows)
    out = Augment(shuffle=1.0, crop=crop).apply(given_rows, np.random.default_rng(seed))
    for before, after in zip(given_rows, out):
        assert set(after.tolist()) <= set(before.tolist())
        assert len(set(after.tolist())) == len(after)
        if not crop:
            assert sorted(after.tolist()) == before.tolist()


def test_shares_and_lengths() -> None:
    rows = numbered([[0] * 6] * 4000)
    out = Augment(crop=0.3, shuffle=0.25).apply(rows, np.random.default_rng(0))
    cut = float((out.lengths < 6).mean())
    assert cut == pytest.approx(0.3 * 4 / 5, abs=0.03), "a crop may keep the whole row: one of five lengths"
    lengths = np.bincount(out.lengths[out.lengths < 6], minlength=6)[2:]
    assert lengths.min() > 0.8 * lengths.max(), "all lengths alike"
    shuffled = Augment(shuffle=0.25).apply(rows, np.random.default_rng(0))
    moved = np.mean([a.tolist() != b.tolist() for a, b in zip(rows, shuffled)])
    assert moved == pytest.approx(0.25, abs=0.03)


def test_nothing_asked_nothing_done_and_the_same_twice() -> None:
    rows = numbered([[0] * 5] * 20)
    assert Augment().apply(rows, np.random.default_rng(0)) == rows
    both = Augment(crop=0.5, shuffle=0.5)
    assert both.apply(rows, np.random.default_rng(1)) == both.apply(rows, np.random.default_rng(1))
    assert both.apply(rows, np.random.default_rng(1)) != both.apply(rows, np.random.default_rng(2))


@pytest.mark.parametrize("name", ["crop", "shuffle"])
def test_bad_shares(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"augment\.{name} must be from 0 to 1, got 1\.5"):
        Augment(**{name: 1.5})


def test_crops_begin_and_end_anywhere() -> None:
    rows = Ragged.from_rows([[0, 1, 2]] * 200, np.int64)
    found = {tuple(row.tolist()) for row in Augment(crop=1.0).apply(rows, np.random.default_rng(0))}
    assert found == {(0, 1), (1, 2), (0, 1, 2)}
