"""The assignment problem: rows to columns, each column at most once, with minimal total cost. Exact, NumPy only.

Shortest augmenting paths with potentials (Kuhn 1955; Jonker and Volgenant 1987). Knows no items and no codes.
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
