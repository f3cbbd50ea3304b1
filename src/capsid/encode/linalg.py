"""Truncated SVD and principal axes, deterministic to the bit. Knows matrices, not items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capsid.base.randomness import numpy_rng

if TYPE_CHECKING:
    import scipy.sparse as sp

DENSE_BELOW = 384
OVERSAMPLING = 32
POWER_ROUNDS = 8


def truncated_svd(matrix_MN: sp.csr_matrix, rank: int, *, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The leading singular triplets, at most `rank`, signs fixed. Shapes: (m, r), (r,), (n, r).

    Small matrices are solved exactly, others by randomised subspace iteration (Halko, Martinsson and Tropp 2011,
    algorithms 4.4 and 5.1), which unlike Lanczos solvers cannot fail to converge on matrices of low rank.
    """
    rank = min(rank, *matrix_MN.shape)
    if min(matrix_MN.shape) <= max(DENSE_BELOW, rank + OVERSAMPLING):
        left, values, right = np.linalg.svd(matrix_MN.toarray().astype(np.float64), full_matrices=False)
        right = right.T
    else:
        left, values, right = _randomised(matrix_MN, rank + OVERSAMPLING, seed)
    left, values, right = left[:, :rank], values[:rank].copy(), right[:, :rank]
    values[values < 1e-7 * values.max(initial=0.0)] = 0.0
    signs = column_signs(right)
    return left * signs, values, right * signs


def principal_axes(rows_ND: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Axes of the largest second moment about the origin, and the root mean square on each. Shapes: (d, r), (r,). About
    the origin: centre the rows first if you want a PCA."""
    rows_ND = rows_ND.astype(np.float64)
    moments, axes_DR = np.linalg.eigh(rows_ND.T @ rows_ND / max(len(rows_ND), 1))
    rank = min(rank, rows_ND.shape[1])
    axes_DR, moments = axes_DR[:, ::-1][:, :rank], moments[::-1][:rank]
    # Whitening would scale axes that hold only rounding errors up to full-size noise.
    keep = moments > 1e-10 * max(moments[0], 1e-300)
    keep[0] = True
    axes_DR = axes_DR[:, keep]
    return axes_DR * column_signs(axes_DR), np.sqrt(np.maximum(moments[keep], 0.0))


def column_signs(columns_DR: np.ndarray) -> np.ndarray:
    """+1 or -1 for each column, such that its largest entry becomes positive. Shape: (r,)."""
    largest = np.abs(columns_DR).argmax(axis=0)
    return np.where(columns_DR[largest, np.arange(columns_DR.shape[1])] < 0, -1.0, 1.0)


def _randomised(matrix_MN: sp.csr_matrix, width: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    transposed_NM = matrix_MN.T.tocsr()
    basis = numpy_rng(seed, "truncated-svd").standard_normal((matrix_MN.shape[1], width))
    left, _ = np.linalg.qr(matrix_MN @ basis)
    for _ in range(POWER_ROUNDS):
        right, _ = np.linalg.qr(transposed_NM @ left)
        left, _ = np.linalg.qr(matrix_MN @ right)
    small_RN = np.asarray((transposed_NM @ left).T)
    inner, values, right_t = np.linalg.svd(small_RN, full_matrices=False)
    return left @ inner, values, right_t.T
