"""Repeat consumption: one learnt bias, added to the score of a token that would complete an item of the history.

Where users rarely return to an item the bias falls, and their history no longer crowds out new items; where they do,
it rises. It is learnt with the next-token loss and excludes nothing. Knows tokens only; an id that several items share
counts as one. Shapes: M items of a batch, T tokens per item, P items of a history (in `completions`: pairs of items),
E entries, otherwise as in `capsid.generate.network`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from capsid.blocks.cross_entropy import Added
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
class HistoryItems:
    """The items of every user's history; `open_UWP` marks those whose first tokens each beam has generated."""

    tokens_UPT: Tensor
    lengths_UP: Tensor
    open_UWP: Tensor
    value: Tensor

    def on(self, parents_UW: Tensor, tokens_UW: Tensor, depth: int) -> HistoryItems:
        """The state after every beam appended a token, the `depth`-th of its item."""
        users_U1 = torch.arange(len(parents_UW))[:, None]
        open_UWP = self.open_UWP[users_U1, parents_UW]
        if depth < self.tokens_UPT.shape[2]:
            open_UWP = open_UWP & (self.tokens_UPT[:, None, :, depth] == tokens_UW[..., None])
        return replace(self, open_UWP=open_UWP)

    def added_to(self, logits_UWV: Tensor, depth: int) -> Tensor:
        """Add the bias to the scores of tokens at `depth` that complete an open item. Works in place: a copy of all
        scores would cost more than the rest of a step."""
        vocabulary = logits_UWV.shape[-1]
        key_E = self._completing(depth, vocabulary)
        if len(key_E):
            logits_UWV.view(-1).index_add_(0, key_E, self.value.expand(len(key_E)))
        return logits_UWV

    def added_of(self, row_E: Tensor, token_E: Tensor, depth: int) -> Tensor:
        """The bias of each (row, token) pair; rows are numbered user by user. Shape: (E,)."""
        stride = int(max(self.tokens_UPT.max(), token_E.max())) + 1 if len(token_E) else 1
        key_C, asked_E = self._completing(depth, stride), row_E * stride + token_E
        if not len(key_C):
            return torch.zeros(len(token_E))
        found_E = torch.searchsorted(key_C, asked_E).clamp_max(len(key_C) - 1)
        return torch.where(key_C[found_E] == asked_E, self.value, torch.zeros(()))

    def _completing(self, depth: int, stride: int) -> Tensor:
        """Sorted keys row * stride + token of the tokens at `depth` that complete an open item. Shape: (entries,)."""
        beams = self.open_UWP.shape[1]
        user_E, beam_E, item_E = (self.open_UWP & (self.lengths_UP == depth + 1)[:, None]).nonzero(as_tuple=True)
        if not len(user_E):
            return user_E
        # `unique` also makes an item that occurs twice in a history count once.
        return ((user_E * beams + beam_E) * stride + self.tokens_UPT[user_E, item_E, depth]).unique()


def history_items(histories: TokenBatch, value: Tensor) -> HistoryItems:
    """The state before the first token: every item of the history is open."""
    items_MT, lengths_M = histories.own.dense(PAD).astype(np.int64), histories.own.lengths
    items = histories.items
    users, most = len(histories), int(items.lengths.max())
    tokens_UPT = torch.full((users, most, items_MT.shape[1]), PAD, dtype=torch.int64)
    tokens_UPT[items.row_numbers, items.positions] = torch.from_numpy(items_MT)
    lengths_UP = torch.zeros(users, most, dtype=torch.int64)
    lengths_UP[items.row_numbers, items.positions] = torch.from_numpy(lengths_M)
    return HistoryItems(tokens_UPT, lengths_UP, (lengths_UP > 0)[:, None], value)


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
    return Added(torch.from_numpy(row_E), torch.from_numpy(token_E), value)
