from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capsid.base.popularity import TIERS, most_popular, popularity_order, popularity_ranks, popularity_tiers

COUNTED = st.dictionaries(st.text("ab9", max_size=3), st.integers(0, 5), max_size=20)


@given(counted=COUNTED)
def test_most_popular_first_then_by_number_or_by_id(counted: dict[str, int]) -> None:
    ids, counts = list(counted), list(counted.values())
    numbers = range(len(ids))
    by_number = popularity_order(np.array(counts, dtype=np.int64))
    assert by_number.tolist() == sorted(numbers, key=lambda i: (-counts[i], i))
    by_id = popularity_order(np.array(counts, dtype=np.int64), ids)
    assert by_id.tolist() == sorted(numbers, key=lambda i: (-counts[i], ids[i]))


@given(counted=COUNTED)
def test_ranks_are_places_in_the_order(counted: dict[str, int]) -> None:
    counts = np.array(list(counted.values()), dtype=np.int64)
    order = popularity_order(counts, counted).tolist()
    assert popularity_ranks(counts, counted).tolist() == [order.index(i) for i in range(len(order))]


@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_tiers_are_the_top_fifth_the_next_two_and_the_rest(counts: list[int]) -> None:
    tiers = popularity_tiers(np.array(counts))
    order = sorted(range(len(counts)), key=lambda i: (-counts[i], i))
    assert (np.diff(tiers[order]) >= 0).all()
    n = len(counts)
    assert np.bincount(tiers, minlength=len(TIERS)).tolist() == [
        round(0.2 * n),
        round(0.6 * n) - round(0.2 * n),
        n - round(0.6 * n),
    ]


@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=20), share=st.floats(0.05, 0.95))
def test_the_fewest_items_that_have_a_share(counts: list[int], share: float) -> None:
    found = most_popular(np.array(counts), share).tolist()
    assert found == sorted(found)
    if not sum(counts):
        assert found == list(range(len(counts)))
        return
    kept = [counts[i] for i in found]
    assert sum(kept) >= share * sum(counts)
    assert sum(kept) - min(kept) < share * sum(counts)
    assert max([c for i, c in enumerate(counts) if i not in found], default=0) <= min(kept)
