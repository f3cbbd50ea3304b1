"""Sequences without padding, and dropout that is the same for them as for padded ones.

Rows stand one after the other, and `Spread` says where each would be if the sequences were padded. Linear layers then
see no padding. Attention works on groups of sequences of similar length, padded to the longest of the group. Dropout
draws eight decisions from one 64-bit random number: torch's draws one number per element and took 9 to 15 % of a
training step here. Knows only lengths. Shapes: B sequences, L longest, R rows, G sequences of a group.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from capsid.ragged import Ragged

# Sequences up to this length share a group; beyond it, a group holds lengths up to twice those of the one before.
SHORT = 4


@dataclass(frozen=True, eq=False)
class Spread:
    """Where rows without padding are placed in `sequences` padded to `width`: row r at `slots_R[r]` of all slots."""

    slots_R: Tensor
    sequences: int
    width: int

    @classmethod
    def where(cls, there_BL: Tensor) -> Self:
        """One row for each place that is marked."""
        return cls(there_BL.flatten().nonzero()[:, 0], *there_BL.shape)

    def padded(self, rows_R: Tensor) -> Tensor:
        """Rows at their slots, zeros elsewhere. Shape: (sequences, width, ...)."""
        out = rows_R.new_zeros(self.sequences * self.width, *rows_R.shape[1:]).index_copy(0, self.slots_R, rows_R)
        return out.view(self.sequences, self.width, *rows_R.shape[1:])

    def rows(self, padded: Tensor) -> Tensor:
        """The inverse: only what is at a slot."""
        return padded.flatten(0, 1)[self.slots_R]


@dataclass(frozen=True, eq=False)
class Group:
    """Sequences of similar length: `rows` are theirs, one after the other, and `own` places these in the group.

    `numbers_G` are the sequences' numbers in the batch.
    """

    rows: slice
    numbers_G: Tensor
    own: Spread


@dataclass(frozen=True, eq=False)
class Packed:
    """The rows of a batch of sequences, the shortest sequences first. `among` places them in the padded batch."""

    among: Spread
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, lengths_B: np.ndarray, width: int) -> Self:
        """Sequences of these lengths, in a batch that would be padded to `width`."""
        order_B = np.argsort(lengths_B, kind="stable")
        rows = Ragged.ranges(0, lengths_B[order_B])
        slots_R = order_B[rows.row_numbers] * width + rows.values
        size_B = np.ceil(np.log2(np.maximum(lengths_B[order_B], SHORT)))
        cuts = [0, *(np.flatnonzero(np.diff(size_B)) + 1), len(lengths_B)]
        groups = tuple(_group(rows, order_B, begin, end) for begin, end in itertools.pairwise(cuts))
        return cls(Spread(torch.as_tensor(slots_R), len(lengths_B), width), groups)

    def rows_at(self, slots: Tensor) -> Tensor:
        """The rows at these slots of the padded batch."""
        rows = torch.empty(self.among.sequences * self.among.width, dtype=torch.int64)
        rows[self.among.slots_R] = torch.arange(len(self.among.slots_R))
        return rows[slots]


def _group(rows: Ragged, order_B: np.ndarray, begin: int, end: int) -> Group:
    lengths = rows.lengths[begin:end]
    inside, width = Ragged.ranges(0, lengths), max(int(lengths.max()), 1)
    own = Spread(torch.as_tensor(inside.row_numbers * width + inside.values), len(lengths), width)
    return Group(slice(int(rows.offsets[begin]), int(rows.offsets[end])), torch.as_tensor(order_B[begin:end]), own)


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
    """Bytes below this are dropped. The scale uses the rate as it is rounded here, so expectations stay exact."""
    return round(rate * 256)
