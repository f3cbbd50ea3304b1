"""Pairs, counts and profiles, against plain loops."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import make_ids, random_codes, random_histories

from capsid.ids.collisions import Suffix
from capsid.ids.merges import MergeTable
from capsid.ragged import Ragged
from capsid.tokenize.capsules.pairs import (
    centre_profiles,
    find_candidates,
    item_profiles,
    unit,
    with_cosines,
)

SIZES = (3, 4, 3)


@pytest.mark.parametrize("count", ["interactions", "users"])
@given(seed=st.integers(0, 1000), least=st.integers(1, 6))
def test_counts(count: str, seed: int, least: int) -> None:
    codes = random_codes(seed, items=20, sizes=SIZES, variable=True, distinct=False)
    ids = make_ids(codes, SIZES, Suffix())
    first = ids.layout.vocabulary
    ids = ids.with_merges(MergeTable(first, (2, 5), (5, 9), (0.9, 0.8), (1, 1)))
    rng = np.random.default_rng(seed)
    histories = random_histories(seed, 20, rng.integers(1, 9, 12).tolist())
    # Somebody takes the same things again and again.
    histories = histories.append(random_histories(seed, 20, [5]).take(np.zeros(1, dtype=int)))
    twice = histories.take(np.array([0, 0, 1]))
    histories = histories.append(type(twice)(twice.values, twice.offsets[[0, 2, 3]]))
    wanted: Counter[tuple[int, int]] = Counter()
    for history in histories:
        seen = []
        for item in history:
            tokens = ids.tokens[int(item)].tolist()[:-1]  # the suffix never merges
            seen += list(zip(tokens, tokens[1:]))  # noqa: RUF007
        wanted.update(set(seen) if count == "users" else seen)
    pairs = find_candidates(ids.tokens, ids.layout, histories, number=2, least=least, count=count)
    found = dict(zip(zip(pairs.left.tolist(), pairs.right.tolist()), pairs.count.tolist()))
    assert found == {p: n for p, n in wanted.items() if n >= least}
    assert list(found) == sorted(found)
    assert (pairs.number == 2).all()
    if len(pairs):
        assert pairs.frequency == pytest.approx(np.log(1 + pairs.count) / np.log(1 + pairs.count.max()))


def test_profiles_are_mean_directions_of_the_items_that_carry_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = make_ids(random_codes(1, items=30, sizes=SIZES, variable=True, distinct=False), SIZES)
    ids = ids.with_merges(MergeTable(ids.layout.vocabulary, (2, 3), (5, 5), (0.9, 0.8), (1, 1)))
    vectors = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32) * np.arange(30)[:, None]
    found = item_profiles(ids.tokens, ids.layout.vocabulary, vectors)
    for token in range(ids.layout.vocabulary):
        rows = [v / max(np.linalg.norm(v), 1e-9) for v, t in zip(vectors, ids.tokens) if token in t]
        mean = np.sum(rows, axis=0) if rows else np.zeros(5)
        np.testing.assert_allclose(found[token], mean / max(np.linalg.norm(mean), 1e-9), atol=1e-6)
    monkeypatch.setattr("capsid.tokenize.capsules.pairs.BLOCK", 7)
    np.testing.assert_allclose(item_profiles(ids.tokens, ids.layout.vocabulary, vectors), found, atol=1e-12)


def test_profiles_of_centres_and_cosines() -> None:
    ids = make_ids([[0, 0, 0], [1, 1, 1]], SIZES)
    ids = ids.with_merges(MergeTable(ids.layout.vocabulary, (2, 12), (5, 9), (0.9, 0.8), (1, 2)))
    centres = np.random.default_rng(0).normal(size=(12, 4))
    centres[:2] = np.nan
    found = centre_profiles(ids.layout, centres)
    np.testing.assert_allclose(found[13], unit(centres[[2]] + centres[[5]] + centres[[9]])[0])
    np.testing.assert_allclose(found[7], centres[7] / np.linalg.norm(centres[7]))
    assert (found[:2] == 0).all()
    pairs = find_candidates(ids.unmerged, ids.layout, Ragged.from_rows([[0, 1]]), number=1, least=1, count="users")
    pairs = with_cosines(pairs, found)
    assert pairs.cosine[0] == pytest.approx(float(found[2] @ found[5]))
    assert pairs.score(0.25) == pytest.approx(0.25 * pairs.frequency + 0.75 * pairs.cosine)
