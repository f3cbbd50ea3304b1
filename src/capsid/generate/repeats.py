"""Repeat consumption: one learnt bias, added to the score of a token that would complete an item of the history.

If users rarely return to an item, the bias falls and their history no longer crowds out new items; if they do, it
rises. It is learnt with the next-token loss and excludes nothing. Knows tokens only; an id that several items share
counts as one. Shapes: M items of a batch, T tokens per item, P items of a history (in `completions`: pairs of items), E
entries, otherwise as in `capsid.generate.open_items`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from capsid.base.blocks.cross_entropy import Added
from capsid.generate.open_items import OpenItems, padded_items
from capsid.ids.layout import PAD
from capsid.ids.reading import Lesson, TokenBatch
from capsid.ragged import Ragged

# The bias may have to grow large while optimiser steps are small, so it is this many times its parameter.
REACH = 10.0


class Repeats(nn.Module):
    """The learnt bias; it starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def start(self) -> None:
        """Back to 0."""
        nn.init.zeros_(self.weight)

    def value(self) -> Tensor:
        """The bias that is added to a score."""
        return REACH * self.weight


@dataclass(frozen=True, eq=False)
class HistoryItems(OpenItems):
    """The items of every user's history."""

    value: Tensor

    def numbers(self, depth: int, stride: int) -> tuple[Tensor, Tensor]:
        """The bias of every token that completes an open item."""
        # An item that occurs twice in a history counts once.
        key_C = self.keys(depth, stride, self.lengths_UP == depth + 1)[0].unique()
        return key_C, self.value.expand(len(key_C))


def history_items(histories: TokenBatch, value: Tensor) -> HistoryItems:
    """The state before the first token: every item of the history is open."""
    return HistoryItems(*padded_items(histories.items, histories.own), value)


def completions(lesson: Lesson, value: Tensor) -> Added:
    """For every predicted token: which tokens, predicted instead, would complete an earlier item of the sequence.

    Rows are numbered as in `predict`: the tokens of the lesson's items, in order.
    """
    own, before_M = lesson.batch.own, lesson.before_M
    items_IT, lengths_I = own.dense(PAD).astype(np.int64), own.lengths
    # One pair for each predicted item and each item of its history, the most recent first.
    back = Ragged.ranges(0, before_M)
    later_P = back.row_numbers
    # `own_M` indexes the predicted item itself among all items read; its history is what comes before it in its row.
    own_M = lesson.batch.items.offsets[lesson.row_M] + before_M
    earlier_P = own_M[later_P] - 1 - back.values
    last_P = lengths_I[earlier_P] - 1
    # The earlier item can be completed where all its tokens but the last equal those of the predicted item.
    same_PT = items_IT[earlier_P] == items_IT[own_M[later_P]]
    open_P = (same_PT | (np.arange(items_IT.shape[1]) >= last_P[:, None])).all(1)
    later_P, earlier_P, last_P = later_P[open_P], earlier_P[open_P], last_P[open_P]
    row_P = lesson.tokens.offsets[:-1][later_P] + last_P
    # Keys row * vocabulary + token: sorted by row, and an item that occurs twice counts once.
    vocabulary = int(items_IT.max()) + 1
    row_E, token_E = np.divmod(np.unique(row_P * vocabulary + items_IT[earlier_P, last_P]), vocabulary)
    return Added(torch.as_tensor(row_E), torch.as_tensor(token_E), value.expand(len(row_E)))
