"""Vectors of tokens from centres, for one and for two ids."""

from __future__ import annotations

import numpy as np

from capsid.ids.layout import TokenLayout
from capsid.ids.merges import MergeTable
from capsid.tokenize.base import joined_vectors, token_vectors


def test_merged_tokens_are_sums_of_their_members() -> None:
    layout = TokenLayout((2, 2), suffix=1, merges=MergeTable(7, (2,), (5,), (0.9,), (1,)))
    centres = (np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[2.0, 2.0], [4.0, 0.0]]))
    found = token_vectors(layout, centres)
    assert np.isnan(found[[0, 1, 6]]).all()
    np.testing.assert_allclose(found[2:6], np.concatenate(centres))
    np.testing.assert_allclose(found[7], np.array([5.0, 0.0]) / np.sqrt(2), rtol=1e-6)


def test_both_ids_have_vectors_of_the_same_length() -> None:
    first, second = np.full((4, 3), np.nan, np.float32), np.full((7, 2), np.nan, np.float32)
    first[2:4] = [[3.0, 0.0, 4.0], [0.0, 5.0, 0.0]]
    second[4:6] = [[0.3, 0.4], [0.5, 0.0]]
    found = joined_vectors([(first, slice(0, 4)), (second, slice(4, len(second)))], len(second))
    assert found.shape == (7, 3)
    assert np.isnan(found[[0, 1, 6]]).all()
    np.testing.assert_allclose(found[2:4], first[2:4] / 5, rtol=1e-6)
    np.testing.assert_allclose(found[4:6], [[0.6, 0.8, 0.0], [1.0, 0.0, 0.0]], rtol=1e-6)
