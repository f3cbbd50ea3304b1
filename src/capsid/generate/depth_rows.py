"""The rows of a network over depth in training: one row for every token of every item of a lesson.

The row that predicts an item's token at depth d has read the d tokens before it. Knows tokens only. Shapes: M items,
N their tokens, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from capsid.base.blocks.packed import Spread
from capsid.ids.reading import Lesson
from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class ItemRows:
    """Row r has read `depth_R[r]` tokens of item `item_R[r]`, the last of them token number `before_R[r]`.

    Where a row has read nothing, `before_R` is any token. `own` places the rows in items padded to one length. With
    `closing` every item has one more row, which has read all its tokens.
    """

    lesson: Lesson
    item_R: np.ndarray
    depth_R: np.ndarray
    before_R: np.ndarray
    own: Spread
    closing: bool

    @classmethod
    def of(cls, lesson: Lesson, *, closing: bool) -> Self:
        """The rows for a lesson."""
        lengths_M = lesson.tokens.lengths
        rows = Ragged.ranges(0, lengths_M + 1 if closing else lengths_M)
        item_R, depth_R = rows.row_numbers, rows.values
        before_R = np.maximum(lesson.tokens.offsets[:-1][item_R] + depth_R - 1, 0)
        width = int(depth_R.max()) + 1
        own = Spread(torch.as_tensor(item_R * width + depth_R), len(lengths_M), width)
        return cls(lesson, item_R, depth_R, before_R, own, closing)

    @property
    def tokens_R(self) -> Tensor:
        """The token that every row has read last."""
        return torch.as_tensor(self.lesson.tokens.values[self.before_R].astype(np.int64))

    @property
    def first_R(self) -> Tensor:
        """Whether a row has read no token of its item."""
        return torch.as_tensor(self.depth_R == 0)

    def parted(self, rows_RD: Tensor) -> tuple[Tensor, Tensor | None]:
        """Hidden rows for the lesson's tokens, and those that have read whole items where they were asked for."""
        if not self.closing:
            return rows_RD, None
        last_R = torch.as_tensor(self.depth_R == self.lesson.tokens.lengths[self.item_R])
        return rows_RD[~last_R], rows_RD[last_R]
