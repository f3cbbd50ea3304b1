"""Dropout that draws eight decisions from one 64-bit random number.

torch's CPU dropout draws one number per element and took 9 to 15 % of a training step here. The rate is rounded to
1/256 and the scale uses the rounded rate, so expectations stay exact.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from capsid.base.blocks.packed import Spread


def dropout(x: Tensor, rate: float, training: bool, among: Spread | None = None) -> Tensor:
    """Zero a share `rate` of the elements and scale the rest, in training only.

    With `among`, x are rows of padded sequences, and what is dropped of them is what would be dropped of the padded
    ones.
    """
    if not drops(rate, training):
        return x
    if among is None:
        return x * kept(random_bytes(x.shape), rate)
    return x * kept(random_bytes((among.sequences * among.width, *x.shape[1:]))[among.slots_R], rate)


def drops(rate: float, training: bool) -> bool:
    """Whether anything is dropped; if not, no random number is drawn."""
    return training and _threshold(rate) > 0


def random_bytes(shape: tuple[int, ...]) -> Tensor:
    """One random byte for each decision."""
    count = math.prod(shape)
    words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    return words.view(torch.uint8)[:count].view(shape)


def kept(bytes_: Tensor, rate: float) -> Tensor:
    """The factor of every element: 0, or the scale of what is kept."""
    # Comparing bytes and converting booleans are both slow here; clamping floats is fast.
    threshold = _threshold(rate)
    keep = bytes_.to(torch.get_default_dtype()).sub_(threshold - 1).clamp_(0, 1)
    return keep.mul_(256 / (256 - threshold))


def _threshold(rate: float) -> int:
    """Bytes below this are dropped."""
    return round(rate * 256)
