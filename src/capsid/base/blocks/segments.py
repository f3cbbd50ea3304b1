"""Reductions over segments: values that belong to the same ragged row. Knows only numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def segment_logsumexp(values_E: Tensor, segment_E: Tensor, count: int) -> Tensor:
    """Log of the summed exponentials of every segment; minus infinity for an empty one. Shape: (count,)."""
    largest_S = torch.full((count,), -torch.inf).scatter_reduce(0, segment_E, values_E.detach(), "amax")
    # In a segment of minus infinities, subtracting the largest value would give NaN.
    shift_S = torch.where(largest_S.isinf(), torch.zeros(()), largest_S)
    sums_S = torch.zeros(count).index_add(0, segment_E, (values_E - shift_S[segment_E]).exp())
    return sums_S.log() + shift_S
