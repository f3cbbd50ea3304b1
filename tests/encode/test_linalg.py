from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from capsid.encode.factorised import column_signs, principal_axes, truncated_svd


def low_rank(n: int, m: int, rank: int, seed: int = 0) -> sp.csr_matrix:
    rng = np.random.default_rng(seed)
    return sp.csr_matrix(rng.normal(size=(n, rank)) @ rng.normal(size=(rank, m)))


def test_signs_make_the_largest_entry_of_a_column_positive() -> None:
    assert column_signs(np.array([[1.0, -3.0, 2.0], [-2.0, 1.0, -1.0]])).tolist() == [-1.0, -1.0, 1.0]


@pytest.mark.parametrize("size", [(30, 50), (500, 450)])
def test_svd_rebuilds_a_matrix_of_low_rank(size: tuple[int, int]) -> None:
    matrix = low_rank(*size, rank=7)
    left, values, right = truncated_svd(matrix, 12, seed=0)
    np.testing.assert_allclose(left * values @ right.T, matrix.toarray(), atol=1e-8)
    assert (values[7:] == 0).all()


def test_randomised_svd_agrees_with_lapack() -> None:
    matrix = sp.random(600, 500, density=0.02, random_state=np.random.default_rng(0), format="csr")
    _, values, _ = truncated_svd(matrix, 20, seed=0)
    exact = np.linalg.svd(matrix.toarray(), compute_uv=False)[:20]
    np.testing.assert_allclose(values, exact, rtol=2e-3)


def test_svd_is_the_same_for_the_same_seed_and_close_for_another() -> None:
    matrix = sp.random(600, 500, density=0.02, random_state=np.random.default_rng(0), format="csr")
    first, again, other = (truncated_svd(matrix, 5, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_allclose(np.abs((first[0] * other[0]).sum(axis=0))[0], 1.0, atol=1e-4)


def test_svd_of_nothing_is_nothing() -> None:
    for size in (10, 600):
        left, values, _ = truncated_svd(sp.csr_matrix((size, size)), 4, seed=0)
        assert np.isfinite(left).all()
        assert not values.any()


def test_principal_axes_are_orthonormal_and_ordered() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 6)) * [5, 4, 3, 2, 1, 0]
    axes, spread = principal_axes(rows, 6)
    assert axes.shape == (6, 5), "an axis without any spread is dropped"
    np.testing.assert_allclose(axes.T @ axes, np.eye(5), atol=1e-12)
    assert (np.diff(spread) < 0).all()
    np.testing.assert_allclose(np.sqrt(((rows @ axes) ** 2).mean(axis=0)), spread)
