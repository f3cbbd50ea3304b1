"""Codes weighted by distance, against the formula written out for one vector at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capsid.tokenize.kmeans import nearby_codes


@given(seed=st.integers(0, 10_000), strongest=st.integers(1, 9), scale=st.sampled_from([1e-2, 1.0, 100.0]))
def test_as_written_out(seed: int, strongest: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    books = [scale * rng.normal(size=(k, 4)).astype(np.float32) for k in (7, 3)]
    vectors_ND = scale * rng.normal(size=(5, 4)).astype(np.float32)
    codes_NLS, weights_NLS = nearby_codes(vectors_ND, books, strongest)
    for n, vector in enumerate(vectors_ND):
        residual = vector.astype(np.float64)
        for depth, book in enumerate(books):
            kept = min(strongest, len(book))
            far = ((residual - book) ** 2).sum(1)
            order = np.argsort(far)[:kept]
            others = [min(((a - b) ** 2).sum() for j, b in enumerate(book) if j != i) for i, a in enumerate(book)]
            np.testing.assert_array_equal(codes_NLS[n, depth, :kept], order)
            wanted = np.exp((far[order[0]] - far[order]) / np.mean(others))
            np.testing.assert_allclose(weights_NLS[n, depth, :kept], wanted, rtol=1e-3, atol=1e-6)
            assert not weights_NLS[n, depth, kept:].any()
            residual = residual - book[order[0]]


def test_degenerate_books() -> None:
    one = np.zeros((1, 2), np.float32)
    twins = np.ones((2, 2), np.float32)
    codes_NLS, weights_NLS = nearby_codes(np.ones((3, 2), np.float32), [one, twins], 2)
    assert codes_NLS.tolist() == [[[0, 0], [0, 1]]] * 3
    assert weights_NLS.tolist() == [[[1, 0], [1, 1]]] * 3
    assert nearby_codes(np.zeros((0, 2), np.float32), [one, twins], 2)[0].shape == (0, 2, 2)
