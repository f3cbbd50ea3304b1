"""Balanced choice of columns by Sinkhorn-Knopp: every row sends the same mass, every column receives the same mass.

Costs in, a transport plan or one column per row out (Cuturi 2013, arXiv 1306.0895; used for code assignment by Asano et
al. 2020, arXiv 1911.05371, and by LC-Rec, arXiv 2311.09049, section III-B). NumPy in float64. Knows no items, no codes.
"""

from __future__ import annotations

import numpy as np

# exp(-LARGEST) is still a normal number; with an epsilon of 0.003 the largest exponent is 2 / 0.003 = 667.
LARGEST = 700.0


def balanced_columns(costs_NK: np.ndarray, *, epsilon: float, iterations: int) -> np.ndarray:
    """The column that gets most of each row's mass, the first of equals. Shape: (rows,)."""
    return transport_plan(costs_NK, epsilon=epsilon, iterations=iterations).argmax(1)


def transport_plan(costs_NK: np.ndarray, *, epsilon: float, iterations: int) -> np.ndarray:
    """Plan whose rows sum to 1/N, nearly, and whose columns sum to 1/K, exactly. Shape: (rows, columns).

    Costs are first scaled so that they span an interval of length 2; `epsilon` is relative to that. Each iteration
    scales the rows, then the columns.
    """
    scaled_NK = _scaled(costs_NK) / epsilon
    if not scaled_NK.size:
        return scaled_NK
    if scaled_NK.max() <= LARGEST:
        plan_NK = _by_factors(scaled_NK, iterations)
        if np.isfinite(plan_NK).all():
            return plan_NK
    return plan_by_logarithms(scaled_NK, iterations)


def _scaled(costs_NK: np.ndarray) -> np.ndarray:
    """Costs over half of their range. Each row's least cost becomes 0, so that no row of the kernel underflows."""
    costs_NK = np.asarray(costs_NK, dtype=np.float64)
    if not costs_NK.size:
        return costs_NK
    half = (costs_NK.max() - costs_NK.min()) / 2
    return (costs_NK - costs_NK.min(1, keepdims=True)) / (half if half > 0 else 1.0)


def _by_factors(scaled_NK: np.ndarray, iterations: int) -> np.ndarray:
    """One factor per row and column instead of rescaling the whole matrix in every iteration.

    Not finite where a factor leaves the number range.
    """
    rows, columns = scaled_NK.shape
    kernel_NK = np.exp(-scaled_NK)
    column_K = np.ones(columns)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for _ in range(iterations):
            row_N = 1 / (rows * (kernel_NK @ column_K))
            column_K = 1 / (columns * (row_N @ kernel_NK))
        return row_N[:, None] * kernel_NK * column_K


def plan_by_logarithms(scaled_NK: np.ndarray, iterations: int) -> np.ndarray:
    """The same plan with logarithms of the factors: several times slower, but never outside the number range."""
    rows, columns = scaled_NK.shape
    log_NK = -scaled_NK
    column_K = np.zeros(columns)
    for _ in range(iterations):
        row_N = -np.log(rows) - np.logaddexp.reduce(log_NK + column_K, axis=1)
        column_K = -np.log(columns) - np.logaddexp.reduce(log_NK + row_N[:, None], axis=0)
    return np.exp(log_NK + row_N[:, None] + column_K)
