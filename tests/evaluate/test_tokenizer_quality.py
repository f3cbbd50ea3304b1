"""Diagnostics of ids against definitions written out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsid.base.vocabulary import Vocabulary
from capsid.data.planted import planted_paths, planted_vectors
from capsid.evaluate.tokenizer_quality import (
    intra_code_similarity,
    tokenizer_quality,
    unexplained_by_depth,
)
from capsid.ids.collisions import Suffix
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged


def by_pairs(vectors: np.ndarray, codes: np.ndarray) -> float | None:
    """Every pair, one at a time."""
    cosines = []
    for i, j in itertools.combinations(range(len(vectors)), 2):
        a, b = vectors[i].astype(float), vectors[j].astype(float)
        if codes[i] == codes[j] and a.any() and b.any():
            cosines.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    return float(np.mean(cosines)) if cosines else None


@given(st.integers(0, 10_000), st.integers(0, 25), st.integers(1, 6))
def test_similarity_equals_the_mean_over_all_pairs(seed: int, items: int, codes: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = (rng.normal(size=(items, 4)) * rng.integers(0, 3, size=(items, 1))).astype(np.float32)
    first = rng.integers(0, codes, size=items)
    found, wanted = intra_code_similarity(vectors, first), by_pairs(vectors, first)
    assert found == (None if wanted is None else pytest.approx(wanted, abs=1e-9))


def test_similarity_of_the_alike_and_of_opposites() -> None:
    east, north = [1.0, 0.0], [0.0, 1.0]
    assert intra_code_similarity(np.array([east, east, north]), np.array([0, 0, 1])) == pytest.approx(1.0)
    assert intra_code_similarity(np.array([east, [-3.0, 0.0]]), np.array([7, 7])) == pytest.approx(-1.0)
    assert intra_code_similarity(np.array([east, north]), np.array([0, 1])) is None


def test_unexplained_by_depth() -> None:
    centres = {0: 1.0, 1: 2.0}
    codes = Ragged.from_rows([[0, 1], [1]])

    def decode(rows: Ragged) -> np.ndarray:
        return np.array([[sum(centres[int(c)] for c in row)] for row in rows])

    assert unexplained_by_depth(np.array([[3.0], [2.5]]), codes, decode) == pytest.approx((1.25, 0.25))
    assert unexplained_by_depth(np.array([[3.0], [2.5]]), codes, lambda rows: None) is None


def test_true_paths_of_a_planted_tree_are_good_ids() -> None:
    paths, vectors = planted_paths(), planted_vectors()
    items = Vocabulary(f"i{i}" for i in range(len(paths)))
    ids = SemanticIds.assign(items, Ragged.from_dense(paths.astype(np.int32)), (8, 4, 4), Suffix())
    shuffled = np.random.default_rng(0).permutation(paths)
    random = SemanticIds.assign(items, Ragged.from_dense(shuffled.astype(np.int32)), (8, 4, 4))
    good, bad = tokenizer_quality(ids, vectors), tokenizer_quality(random, vectors)
    assert good.intra_code_similarity is not None
    assert bad.intra_code_similarity is not None
    assert good.intra_code_similarity > bad.intra_code_similarity + 0.5
    assert good.mean_similarity == pytest.approx(bad.mean_similarity)
    assert (good.collision_rate, bad.collision_rate) == (pytest.approx(0.75), pytest.approx(0.75))
    assert (good.collision_rate_final, good.items_sharing_an_id) == (0.0, 0)
    assert (bad.collision_rate_final, bad.items_sharing_an_id) == (pytest.approx(0.75), 512)
    assert (good.utilization, good.utilization_by_depth) == (1.0, (1.0, 1.0, 1.0))
    assert good.gini == pytest.approx(0.0)
    assert good.reconstruction.hard is None
    assert good.to_dict()["reconstruction"] == {"soft": None, "hard": None}


def test_without_vectors() -> None:
    ids = SemanticIds.assign(Vocabulary("ab"), Ragged.from_rows([[0], [0]]), (2,))
    quality = tokenizer_quality(ids)
    assert (quality.intra_code_similarity, quality.mean_similarity) == (None, None)
    assert quality.utilization == 0.5
    assert quality.length_histogram == {1: 2}
