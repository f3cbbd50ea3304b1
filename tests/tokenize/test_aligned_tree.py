"""A balanced tree with numbers that mean directions: unique ids, equal sizes, alignment in a planted world."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import make_table

from capsid.data.item_table import ItemTable
from capsid.encode.base import l2_normalise
from capsid.errors import ConfigError
from capsid.ragged import Ragged
from capsid.tokenize.rivals.aligned_tree import AlignedTree, aligned_numbers, anchors, balanced_split


def fitted(table: ItemTable, **fields: Any) -> AlignedTree:
    return AlignedTree(**{"branching": (4, 3), **fields}).fit(table)


def random_table(items: int, seed: int = 0, width: int = 6) -> ItemTable:
    return make_table(np.random.default_rng(seed).normal(size=(items, width)))


@given(st.integers(1, 70), st.integers(0, 3), st.sampled_from([(4, 3), (5,), (2, 3, 2)]))
def test_ids_are_unique_and_clusters_differ_by_at_most_one_item(items: int, seed: int, branching: tuple) -> None:
    table = random_table(items, seed)
    tokenizer = fitted(table, branching=branching)
    codes_NL = tokenizer.encode(table).dense()
    assert len(np.unique(codes_NL, axis=0)) == items
    assert tuple(codes_NL.max(0) + 1) == tokenizer.sizes
    for level, parts in enumerate(branching):
        for parent in np.unique(codes_NL[:, :level], axis=0):
            own = codes_NL[(codes_NL[:, :level] == parent).all(1), level]
            sizes = np.unique(own, return_counts=True)[1]
            assert len(sizes) == min(parts, len(own))
            assert sizes.max() - sizes.min() <= 1


def world() -> tuple[ItemTable, np.ndarray]:
    """Four far-apart groups; inside each, items lie in the same three directions."""
    rng = np.random.default_rng(0)
    direction_N = np.tile(np.repeat(np.arange(3), 4), 4)
    group_N = np.repeat(np.arange(4), 12)
    vectors = 30 * np.eye(8)[4 + group_N] + 3 * np.eye(8)[direction_N] + 0.1 * rng.normal(size=(48, 8))
    return make_table(vectors), direction_N


def within_code_cosine(table: ItemTable, tokenizer: AlignedTree) -> float:
    """Mean cosine of items with the same second code, as seen from the centre of their first."""
    codes_NL = tokenizer.encode(table).dense()
    parents_ND = tokenizer.decode(Ragged.from_dense(codes_NL[:, :1]))
    seen_ND = l2_normalise(table.vectors() - parents_ND)
    alike_NN = codes_NL[:, 1][:, None] == codes_NL[:, 1]
    apart_NN = codes_NL[:, 0][:, None] != codes_NL[:, 0]
    return float((seen_ND @ seen_ND.T)[alike_NN & apart_NN].mean())


def test_aligned_numbers_mean_the_same_direction_under_every_parent() -> None:
    table, direction_N = world()
    aligned, local = fitted(table), fitted(table, aligned=False)
    assert within_code_cosine(table, aligned) > 0.9
    assert within_code_cosine(table, local) < 0.6
    second_N = aligned.encode(table).dense()[:, 1]
    assert len({(s, d) for s, d in zip(second_N.tolist(), direction_N.tolist())}) == 3, "a number is a direction"
    first = local.encode(table).dense()
    np.testing.assert_array_equal(first[:, 0], aligned.encode(table).dense()[:, 0])


def test_numbers_have_the_largest_sum_of_cosines() -> None:
    rng = np.random.default_rng(1)
    centres, parent, lines = rng.normal(size=(4, 6)), rng.normal(size=6), anchors(5, 6, 0)
    found = aligned_numbers(centres, parent, lines)
    cosines = l2_normalise(centres - parent) @ lines.T
    best = max(sum(cosines[i, k] for i, k in enumerate(numbers)) for numbers in itertools.permutations(range(5), 4))
    assert cosines[np.arange(4), found].sum() == pytest.approx(best, rel=1e-5)
    assert aligned_numbers(parent[None] * (1 + 1e-9), parent, lines).tolist() == [0], "rounding is no direction"


def test_anchors_are_orthonormal_as_far_as_there_is_room() -> None:
    np.testing.assert_allclose(anchors(5, 8, 3) @ anchors(5, 8, 3).T, np.eye(5), atol=1e-6)
    many = anchors(20, 8, 3)
    assert many.shape == (20, 8)
    np.testing.assert_allclose(np.linalg.norm(many, axis=1), 1, rtol=1e-6)
    assert np.abs(many @ many.T - np.eye(20)).max() < 0.999
    assert not np.array_equal(anchors(5, 8, 3), anchors(5, 8, 4))


def test_a_split_into_more_parts_than_items() -> None:
    vectors = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    labels, centres = balanced_split(vectors, 5, 0)
    assert labels.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(centres, vectors)


def test_a_new_item_follows_the_nearest_centres() -> None:
    table, _ = world()
    tokenizer = fitted(table)
    known = tokenizer.encode(table).dense()
    late = make_table(table.vectors()[[2, 17, 40]] + 0.01, names=["x", "y", "z"])
    found = tokenizer.encode(late).dense()
    np.testing.assert_array_equal(found[:, :2], known[[2, 17, 40], :2])
    assert (found[:, 2] < tokenizer.sizes[2]).all()
    # The last code is the one whose items lie in the nearest direction from their clusters, on average.
    towards = l2_normalise(late.vectors() - tokenizer.decode(Ragged.from_dense(found[:, :2])))
    wanted = (towards @ l2_normalise(tokenizer.centres()[2]).T).argmax(1)
    np.testing.assert_array_equal(found[:, 2], wanted)
    assert len(set(wanted)) > 1, "or any constant would do"
    again = tokenizer.encode(make_table(-table.vectors()[[2]], names=[table.items[2]]))
    np.testing.assert_array_equal(again.dense(), known[[2]], err_msg="a known item keeps its codes")


def test_decoding_gives_the_smallest_cluster_and_centres_add_up_to_it() -> None:
    table, _ = world()
    tokenizer = fitted(table)
    codes = tokenizer.encode(table)
    errors = [
        float(np.linalg.norm(table.vectors() - tokenizer.decode(codes.first(depth)), axis=1).mean()) for depth in (1, 2)
    ]
    assert errors[1] < 0.5 * errors[0]
    np.testing.assert_array_equal(tokenizer.decode(codes), tokenizer.decode(codes.first(2)))
    first, second = tokenizer.centres()[:2]
    sums = first[codes.dense()[:, 0]] + second[codes.dense()[:, 1]]
    assert np.linalg.norm(table.vectors() - sums, axis=1).mean() < 0.5 * errors[0]
    assert not tokenizer.decode(Ragged.from_rows([[99, 0]])).any(), "a path that no item has"


@pytest.mark.parametrize(("field", "value"), [("branching", ()), ("branching", (3, 0))])
def test_impossible_settings(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"aligned-tree.{field} must be"):
        AlignedTree(**{field: value})
