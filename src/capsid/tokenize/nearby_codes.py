"""The strongest codes of vectors by their distances to the centres: soft input for tokenizers with codebooks.

At each depth a code weighs exp(-d^2 / t), where d is the distance from the residual of the hard codes to its centre
and t the mean squared distance between a centre and its nearest neighbour, so weights do not depend on the scale of
the vectors. Knows no items and no ids. Shapes: N vectors, D dimensions, K codes of a book, L depths, S strongest codes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from capsid.tokenize.kmeans import distances, squared_distances


def nearby_codes(vectors_ND: np.ndarray, books: Sequence[np.ndarray], strongest: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes and weights of shape (vectors, depths, strongest), the nearest first; code 0 with weight 0 is padding."""
    shape = (len(vectors_ND), len(books), strongest)
    codes_NLS, weights_NLS = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.float32)
    residual_ND = np.array(vectors_ND, dtype=np.float32)
    for depth, book_KD in enumerate(books):
        kept, spacing, start = min(strongest, len(book_KD)), _spacing(book_KD), 0
        for own_BK in distances(residual_ND, book_KD):
            rows = slice(start, start + len(own_BK))
            codes_BS = np.argsort(own_BK, axis=1, kind="stable")[:, :kept]
            near_BS = np.take_along_axis(own_BK, codes_BS, axis=1)
            codes_NLS[rows, depth, :kept] = codes_BS
            # Relative to the nearest: the vector's own squared norm, which `distances` leaves out, cancels.
            weights_NLS[rows, depth, :kept] = np.exp((near_BS[:, :1] - near_BS) / spacing)
            start += len(own_BK)
        residual_ND -= book_KD[codes_NLS[:, depth, 0]]
    return codes_NLS, weights_NLS


def _spacing(book_KD: np.ndarray) -> float:
    """Mean squared distance between a centre and its nearest neighbour; 1 where there is none."""
    if len(book_KD) < 2:
        return 1.0
    apart_KK = squared_distances(book_KD, book_KD)
    np.fill_diagonal(apart_KK, np.inf)
    return max(float(apart_KK.min(1).mean()), float(np.finfo(np.float32).tiny))
