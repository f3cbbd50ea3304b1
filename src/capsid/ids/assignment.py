"""Rows to columns: each column at most once with minimal total cost, or balanced by Sinkhorn-Knopp. NumPy in float64.

The first is exact, by shortest augmenting paths with potentials (Kuhn 1955; Jonker and Volgenant 1987). In the second
every row sends the same mass and every column receives the same mass (Cuturi 2013, arXiv 1306.0895; used for code
assignment by Asano et al. 2020, arXiv 1911.05371, and by LC-Rec, arXiv 2311.09049, section III-B). Knows no items and
no codes.
"""

from __future__ import annotations

import numpy as np

NOBODY = -1


def cheapest_columns(costs_NK: np.ndarray) -> np.ndarray:
    """The column of every row; rows in excess of the columns get -1. Shape: (rows,)."""
    rows, columns = costs_NK.shape
    owners = _owners(costs_NK if rows <= columns else costs_NK.T)
    if rows > columns:
        # Solved transposed, because rows must not outnumber columns: the owner of a row is its column.
        return owners
    out_N = np.full(rows, NOBODY, dtype=np.int64)
    taken = np.flatnonzero(owners != NOBODY)
    out_N[owners[taken]] = taken
    return out_N


def _owners(costs_NK: np.ndarray) -> np.ndarray:
    """The row that owns each column, for at most as many rows as columns. Shape: (columns,)."""
    costs_NK = np.asarray(costs_NK, dtype=np.float64)
    rows, columns = costs_NK.shape
    price_N, price_K = np.zeros(rows), np.zeros(columns)
    owner_K = np.full(columns, NOBODY, dtype=np.int64)
    for row in range(rows):
        column, far_K, before_K, done_K = _nearest_free(costs_NK, price_N, price_K, owner_K, row)
        # Raise prices by how much nearer each visited column is than the free one: reduced costs stay non-negative.
        visited = np.flatnonzero(done_K)
        gain = far_K[column] - far_K[visited]
        held = owner_K[visited] != NOBODY
        price_N[owner_K[visited[held]]] += gain[held]
        price_N[row] += far_K[column]
        price_K[visited] -= gain
        # Augment: every row on the path moves to the next column, which frees the first column for the new row.
        while column != NOBODY:
            before = before_K[column]
            owner_K[column] = row if before == NOBODY else owner_K[before]
            column = before
    return owner_K


def _nearest_free(
    costs_NK: np.ndarray, price_N: np.ndarray, price_K: np.ndarray, owner_K: np.ndarray, row: int
) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Dijkstra from a row to the nearest column without an owner: that column, distances, predecessors, visited."""
    columns = len(owner_K)
    far_K, before_K = np.full(columns, np.inf), np.full(columns, NOBODY, dtype=np.int64)
    done_K = np.zeros(columns, dtype=bool)
    column, reached = NOBODY, 0.0
    while True:
        through_K = reached + (costs_NK[row] - price_N[row] - price_K)
        nearer_K = ~done_K & (through_K < far_K)
        far_K[nearer_K], before_K[nearer_K] = through_K[nearer_K], column
        column = int(np.where(done_K, np.inf, far_K).argmin())
        reached, done_K[column] = far_K[column], True
        if owner_K[column] == NOBODY:
            return column, far_K, before_K, done_K
        row = int(owner_K[column])


# exp(-LARGEST) is still a normal number; with an epsilon of 0.003 the largest exponent is 2 / 0.003 = 667.
LARGEST = 700.0
# Smoothness of a plan, for costs that span an interval of 2, and how often rows and columns are scaled.
EPSILON, ITERATIONS = 0.003, 50


def balanced_columns(costs_NK: np.ndarray, *, epsilon: float = EPSILON, iterations: int = ITERATIONS) -> np.ndarray:
    """The column that gets most of each row's mass, the first of equals. Shape: (rows,)."""
    return transport_plan(costs_NK, epsilon=epsilon, iterations=iterations).argmax(1)


def transport_plan(costs_NK: np.ndarray, *, epsilon: float, iterations: int) -> np.ndarray:
    """Plan whose rows sum to 1/N, nearly, and whose columns sum to 1/K, exactly. Shape: (rows, columns). Costs are
    first scaled so that they span an interval of length 2; `epsilon` is relative to that. Each iteration scales the
    rows, then the columns."""
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
    """One factor per row and column instead of rescaling the whole matrix in every iteration. Not finite where a factor
    leaves the number range."""
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
