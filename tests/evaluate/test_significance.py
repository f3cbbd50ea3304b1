"""The paired bootstrap against theory, a plain twin, and bad input."""

from __future__ import annotations

import numpy as np
import pytest

from capsid.errors import DataError
from capsid.evaluate.significance import holm, paired_bootstrap, per_user

RNG = np.random.default_rng(0)
HITS = (RNG.random((3, 4000)) < 0.06).astype(float)


def test_a_method_against_itself() -> None:
    same = paired_bootstrap(HITS[:1], HITS[:1])
    assert (same.difference, same.low, same.high, same.p) == (0, 0, 0, 1)
    assert not same.significant
    assert same.users == 4000


def test_a_clear_gain_is_seen_and_its_mirror_image() -> None:
    better = np.maximum(HITS, (RNG.random((3, 4000)) < 0.02).astype(float))
    gain = paired_bootstrap(better, HITS)
    assert gain.significant
    assert gain.p < 0.001
    assert gain.difference == pytest.approx(gain.first - gain.second)
    loss = paired_bootstrap(HITS, better)
    assert (loss.difference, loss.p) == (pytest.approx(-gain.difference), gain.p)
    assert loss.high < 0


def test_the_interval_is_that_of_a_plain_bootstrap() -> None:
    a, b = HITS[:1], HITS[1:2]
    found = paired_bootstrap(a, b, draws=4000)
    gaps = a[0] - b[0]
    means = [gaps[RNG.integers(0, 4000, 4000)].mean() for _ in range(2000)]
    np.testing.assert_allclose([found.low, found.high], np.quantile(means, [0.025, 0.975]), atol=1.2e-3)
    # And that of theory: half the width is 1.96 standard errors of the paired difference.
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * gaps.std() / 4000**0.5, rel=0.06)


def test_seeds_are_drawn_too() -> None:
    """Against loops that draw seeds of each side and users; and wider than what users alone would show."""
    first = np.stack([np.arange(900) % 10 < n for n in (3, 4, 6)]).astype(float)
    second = np.stack([np.arange(900) % 7 < n for n in (2, 3)]).astype(float)
    found = paired_bootstrap(first, second, draws=4000)
    means = []
    for _ in range(4000):
        users = RNG.integers(0, 900, 900)
        sides = [side[RNG.integers(0, len(side), len(side))].mean(0)[users].mean() for side in (first, second)]
        means.append(sides[0] - sides[1])
    np.testing.assert_allclose([found.low, found.high], np.quantile(means, [0.025, 0.975]), atol=0.012)
    averaged = paired_bootstrap(first.mean(0)[None], second.mean(0)[None])
    assert found.difference == pytest.approx(averaged.difference)
    assert found.high - found.low > 2 * (averaged.high - averaged.low)


def test_seeds_that_agree_widen_nothing() -> None:
    once = paired_bootstrap(HITS[:1], HITS[1:2])
    thrice = paired_bootstrap(np.repeat(HITS[:1], 3, 0), np.repeat(HITS[1:2], 3, 0))
    assert (thrice.low, thrice.high) == (pytest.approx(once.low, abs=4e-4), pytest.approx(once.high, abs=4e-4))


def test_pairing_matters() -> None:
    shifted = paired_bootstrap(HITS[:1], np.roll(HITS[:1], 7, axis=1))
    assert shifted.difference == 0
    assert shifted.high > 0 > shifted.low


def test_false_alarms_are_rare() -> None:
    alarms = [
        paired_bootstrap([RNG.random(300) < 0.3], [RNG.random(300) < 0.3], draws=400, seed=s).significant
        for s in range(200)
    ]
    assert 0.01 < np.mean(alarms) < 0.1


@pytest.mark.parametrize(("first", "second"), [([], [np.ones(3)]), ([np.ones(3)], [np.ones(4)]), ([[]], [[]])])
def test_what_cannot_be_paired(first: list, second: list) -> None:
    with pytest.raises(DataError):
        paired_bootstrap(first, second)


def test_a_user_with_several_cases_is_drawn_as_a_whole() -> None:
    users = np.repeat(np.arange(100), 8)
    ours, theirs = np.repeat(HITS[0, :100], 8).astype(float), np.repeat(HITS[1, :100], 8).astype(float)
    assert per_user(ours, np.arange(800)) is ours
    one = per_user(np.array([1.0, 0.0, 0.0, 1.0]), np.array([7, 7, 7, 3]))
    assert one.tolist() == [0.5, 0.5]
    assert per_user(ours, users).mean() == pytest.approx(ours.mean())
    wide = paired_bootstrap([per_user(ours, users)], [per_user(theirs, users)])
    once = paired_bootstrap([HITS[0, :100]], [HITS[1, :100]])
    narrow = paired_bootstrap([ours], [theirs])
    assert wide.difference == pytest.approx(narrow.difference)
    assert wide.high - wide.low == pytest.approx(once.high - once.low, rel=0.05)
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_holm_by_hand() -> None:
    # 0.01 x 4; 0.02 x 3; 0.03 x 2 = 0.06, not below; 0.9.
    assert holm([0.03, 0.9, 0.01, 0.02]) == pytest.approx([0.06, 0.9, 0.04, 0.06])
    assert holm([0.7, 0.6]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm([0.2]) == [0.2]


def test_a_p_value_at_the_floor_says_so() -> None:
    clear = paired_bootstrap([np.ones(50)], [np.zeros(50)])
    assert (clear.at_floor, clear.p_text) == (True, "< 0.0002")
    few = paired_bootstrap([np.ones(50)], [np.zeros(50)], draws=99)
    assert few.p_text == "< 0.0200"
    unclear = paired_bootstrap(HITS[:1], HITS[1:2])
    assert not unclear.at_floor
    assert unclear.p_text == f"{unclear.p:.4f}"
