"""Neighbours: which items are alike, beside the transitions, with new items and in a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import make_ids

from capsid.base.storage.untrusted import interpreting
from capsid.encode.nearest import SHARPNESS, Neighbours, nearest_items
from capsid.errors import ArtifactError
from capsid.memory.memory import FittedMemory, Transitions
from capsid.ragged import Ragged

ITEMS = 6
IDS = make_ids([[n] for n in range(ITEMS)], (ITEMS,))
MORE = make_ids([[n] for n in range(ITEMS + 2)], (ITEMS + 2,))
SEQUENCES = Ragged.from_rows([[0, 1, 2], [0, 1], [3, 4, 5, 0]])


def likeness(cosine: float) -> float:
    return float(np.expm1(SHARPNESS * cosine))


def near_of(rows: list[list[tuple[int, float]]]) -> Neighbours:
    width = max(len(row) for row in rows)
    padded = [row + [(-1, 0.0)] * (width - len(row)) for row in rows]
    nearest = np.array([[item for item, _ in row] for row in padded])
    return Neighbours.of(nearest, np.array([[cosine for _, cosine in row] for row in padded]))


NEAR = near_of([[(3, 0.5), (1, 0.25)], [(0, 0.25)], [], [(0, 0.5), (5, -0.5)], [(4, 1.0)], []])


def remembering(distances: int = 2, near: Neighbours = NEAR) -> Transitions:
    return replace(Transitions.count(SEQUENCES, ITEMS, distances), near=near)


def columns_of(transitions: Transitions, history: list[int]) -> dict[int, list[float]]:
    found = transitions.following(Ragged.from_rows([history]), MORE.prefix_free)
    return {int(i): c.tolist() for i, c in zip(found.items.values, found.counts_EJ)}


def test_an_item_is_not_its_own_neighbour_and_opposite_items_are_none() -> None:
    assert [row.tolist() for row in NEAR.items] == [[1, 3], [0], [], [0], [], []]
    np.testing.assert_allclose(NEAR.likeness, [likeness(c) for c in (0.25, 0.5, 0.25, 0.5)], rtol=1e-6)


def test_neighbours_of_the_last_items_have_columns_behind_the_counts() -> None:
    found = columns_of(remembering(), [3, 0])
    assert found.keys() == {0, 1, 3, 5}
    # Item 1 followed 0 twice and is like it; 5 followed 3 two positions later; 0 is like 3, which came before it.
    assert found[1] == pytest.approx([2, 0, likeness(0.25), 0])
    assert found[3] == pytest.approx([0, 0, likeness(0.5), 0])
    assert found[5] == pytest.approx([0, 1, 0, 0])
    assert found[0] == pytest.approx([0, 0, 0, likeness(0.5)])


def test_a_predicted_pair_does_not_count_for_itself_but_stays_alike() -> None:
    lesson = IDS.lesson(Ragged.from_rows([[0, 1]]), last=5)
    followers = remembering(1).before(lesson, IDS.prefix_free, counted=True)
    found = {int(i): c.tolist() for i, c in zip(followers.items.values, followers.counts_EJ)}
    assert found[1] == pytest.approx([1, likeness(0.25)])


def test_saved_and_grown_by_new_items(tmp_path: Path) -> None:
    FittedMemory(remembering(), (0.0,) * 4).save(tmp_path)
    loaded = FittedMemory.load(tmp_path, ITEMS).transitions
    assert columns_of(loaded, [3, 0]) == columns_of(remembering(), [3, 0])
    near = NEAR.grown(np.array([[0, 7], [6, 2]]), np.array([[0.75, 0.125], [0.125, 0.5]]))
    grown = loaded.grown(ITEMS + 2, near)
    # The new item is found after the old item that it is like, and old items after the new one.
    assert columns_of(grown, [0])[6] == pytest.approx([0, 0, likeness(0.75), 0])
    assert columns_of(grown, [0])[3] == columns_of(loaded, [0])[3]
    assert columns_of(grown, [6]).keys() == {0, 7}
    assert columns_of(grown, [2]).keys() == {7}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (replace(NEAR, likeness=np.full(4, -1, np.float32)), "at least 0"),
        (replace(NEAR, likeness=np.full(4, np.nan, np.float32)), "finite"),
        (replace(NEAR, likeness=np.ones(3, np.float32)), "each neighbour"),
        (replace(NEAR, items=Ragged.from_rows([[ITEMS], [0], [], [0, 1], [], []])), "outside 0 to 5"),
    ],
)
def test_neighbours_that_cannot_be_right_are_refused(broken: Neighbours, message: str, tmp_path: Path) -> None:
    FittedMemory(remembering(1, broken), (0.0,) * 2).save(tmp_path)
    with pytest.raises(ArtifactError, match=message), interpreting(tmp_path, "run"):
        FittedMemory.load(tmp_path, ITEMS)


@given(seed=st.integers(0, 10_000), count=st.integers(1, 30), k=st.integers(1, 8))
def test_the_nearest_items_are_those_of_a_full_comparison(seed: int, count: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((count, 4))
    asked = rng.permutation(count)[: max(1, count // 2)]
    found, cosines = nearest_items(vectors, asked, k)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert found.shape == cosines.shape == (len(asked), min(k, count - 1))
    for row, item in enumerate(asked):
        wanted = np.delete(unit @ unit[item], item)
        np.testing.assert_allclose(cosines[row], np.sort(wanted)[::-1][:k], atol=1e-5)
        np.testing.assert_allclose(unit[found[row]] @ unit[item], cosines[row], atol=1e-5)
        assert item not in found[row]


def test_items_with_equal_vectors_are_neighbours_but_not_of_themselves() -> None:
    found, cosines = nearest_items(np.ones((9, 3)), np.arange(9), 4)
    assert found.shape == (9, 4)
    assert not (found == np.arange(9)[:, None]).any()
    np.testing.assert_allclose(cosines, 1, atol=1e-6)


def test_in_a_large_catalogue_almost_all_nearest_items_are_found() -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((40, 8))
    vectors = centres[rng.integers(0, 40, 3_000)] + 0.3 * rng.standard_normal((3_000, 8))
    asked = np.arange(0, 3_000, 7)
    exact, _ = nearest_items(vectors, asked, 20)
    fast, _ = nearest_items(vectors, asked, 20, exact_up_to=100)
    found = np.mean([len(np.intersect1d(a, b)) / 20 for a, b in zip(exact, fast)])
    assert 0.9 < found < 1
    few, _ = nearest_items(vectors, asked[:3], 20, exact_up_to=100)
    np.testing.assert_array_equal(few, exact[:3])
