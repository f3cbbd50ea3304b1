"""The centres of the tokens: the vectors whose sums best reconstruct the items, for given codes.

Least squares over all prefixes of all ids, by sweeps over the depths: each centre becomes the mean residual of its
items without it. Takes codes and unit vectors, returns centres; knows no routing.
"""

from __future__ import annotations

import numpy as np

from capsid.ragged import Ragged

SWEEPS = 8


def fit_centres(
    x_ND: np.ndarray, codes_NL: np.ndarray, lengths_N: np.ndarray, start: list[np.ndarray], sweeps: int = SWEEPS
) -> list[np.ndarray]:
    """Centres by depth; a code that no id uses keeps its initial centre. Shapes: (K_l, d)."""
    centres = [c.astype(np.float64) for c in start]
    depths = [np.flatnonzero(lengths_N > depth) for depth in range(len(centres))]
    for _ in range(sweeps):
        for depth, rows in enumerate(depths):
            if len(rows):
                codes_R = codes_NL[rows, depth]
                missing_RD = _mean_missing(x_ND, codes_NL, lengths_N, centres, depth, rows)
                prefixes_R = lengths_N[rows] - depth
                _weighted_means(centres[depth], codes_R, missing_RD, prefixes_R)
    return [c.astype(np.float32) for c in centres]


def _mean_missing(
    x_ND: np.ndarray,
    codes_NL: np.ndarray,
    lengths_N: np.ndarray,
    centres: list[np.ndarray],
    depth: int,
    rows: np.ndarray,
) -> np.ndarray:
    """The items' residuals without this depth's centre, averaged over their prefixes that reach it. Shape: (R, d)."""
    missing_RD = x_ND[rows].astype(np.float64)
    for other, table in enumerate(centres):
        if other == depth or other >= codes_NL.shape[1]:
            continue
        has_R = lengths_N[rows] > other
        # A later depth is part of fewer of those prefixes than an earlier one.
        share_R = np.where(has_R, 1.0, 0.0)
        if other > depth:
            share_R = np.maximum(lengths_N[rows] - other, 0) / (lengths_N[rows] - depth)
        missing_RD -= share_R[:, None] * table[codes_NL[rows, other]]
    return missing_RD


def _weighted_means(table_KD: np.ndarray, codes_R: np.ndarray, values_RD: np.ndarray, weights_R: np.ndarray) -> None:
    totals_K = np.bincount(codes_R, weights=weights_R, minlength=len(table_KD))
    users = Ragged.grouped(np.arange(len(codes_R)), codes_R, len(table_KD))
    sums_KD = users.sums(values_RD[users.values] * weights_R[users.values, None])
    used = users.lengths > 0
    table_KD[used] = sums_KD[used] / totals_K[used, None]
