"""Dropout that draws eight decisions from one 64-bit random number.

torch's CPU dropout draws one number per element and took 9 to 15 % of a training step here. The rate is rounded to
1/256 and the scale uses the rounded rate, so expectations stay exact.
"""

from __future__ import annotations

import torch
from torch import Tensor


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Zero a share `rate` of the elements and scale the rest, in training only."""
    threshold = round(rate * 256)
    if not training or threshold == 0:
        return x
    count = x.numel()
    words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    # Comparing bytes and converting booleans are both slow here; clamping floats is fast.
    keep = words.view(torch.uint8)[:count].to(x.dtype).sub_(threshold - 1).clamp_(0, 1)
    return x * keep.mul_(256 / (256 - threshold)).view(x.shape)
