"""Dot products of listed pairs of rows from two tables, without computing the others. Knows only vectors."""

from __future__ import annotations

import torch
from torch import Tensor

# A dense product computes this many numbers in the time of one gathered product (measured on two cores).
DENSE = 24
# Pairs gathered at once, so that the two gathered blocks stay small.
CHUNK = 1 << 16


def pair_products(left_RD: Tensor, right_VD: Tensor, row_E: Tensor, column_E: Tensor) -> Tensor:
    """The dot product of left row `row_E[e]` and right row `column_E[e]`. Shape: (E,).

    If many pairs share columns, one dense product of the used columns is cheaper than a gather.
    """
    used_V = torch.zeros(len(right_VD), dtype=torch.bool)
    used_V[column_E] = True
    columns = int(used_V.sum())
    if len(left_RD) * columns <= DENSE * len(row_E):
        place_V = used_V.cumsum(0) - 1
        dense_RC = left_RD @ (right_VD if columns == len(right_VD) else right_VD[used_V]).T
        return dense_RC.reshape(-1)[row_E * columns + place_V[column_E]]
    parts = [
        (left_RD[rows] * right_VD[columns]).sum(-1) for rows, columns in zip(row_E.split(CHUNK), column_E.split(CHUNK))
    ]
    return torch.cat(parts)
