"""Items that a beam can still reach, bonuses added to the scores of their tokens during a search, and repeat
consumption.

Repeat consumption is one learnt bias, added to the score of a token that would complete an item of the history. If
users rarely return to an item, the bias falls and their history no longer crowds out new items; if they do, it rises.
It is learnt with the next-token loss and excludes nothing; an id that several items share counts as one. Knows tokens
only. Shapes: U users, W beams, P items per user (in `completions`: pairs of items), T tokens per item, E pairs of row
and token asked about, C pairs that get a number, M items of a batch; rows are numbered user by user and beam by beam.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from capsid.base.blocks.cross_entropy import Added
from capsid.ids.layout import PAD
from capsid.ids.reading import Lesson, TokenBatch
from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class OpenItems:
    """Items of every user; `open_UWP` marks those whose first tokens each beam has generated."""

    tokens_UPT: Tensor
    lengths_UP: Tensor
    open_UWP: Tensor

    def on(self, parents_UW: Tensor, tokens_UW: Tensor, depth: int) -> Self:
        """The state after every beam appended a token, the `depth`-th of its item."""
        users_U1 = torch.arange(len(parents_UW))[:, None]
        open_UWP = self.open_UWP[users_U1, parents_UW]
        if depth < self.tokens_UPT.shape[2]:
            open_UWP = open_UWP & (self.tokens_UPT[:, None, :, depth] == tokens_UW[..., None])
        return replace(self, open_UWP=open_UWP)

    def added_to(self, scores: Tensor, depth: int, row_R: Tensor | None = None) -> Tensor:
        """Add the numbers of the tokens at `depth` to the scores of all rows (U, W, V), or of `row_R` alone (R, V).
        Works in place: a copy of all scores would cost more than the rest of a step."""
        tokens = scores.shape[-1]
        key_C, value_C = self.numbers(depth, tokens)
        if row_R is not None and len(row_R):
            # A row is counted among those that were asked for; the others get nothing.
            place_C = torch.searchsorted(row_R, key_C // tokens).clamp_max(len(row_R) - 1)
            there_C = row_R[place_C] == key_C // tokens
            key_C, value_C = (place_C * tokens + key_C % tokens)[there_C], value_C[there_C]
        if len(key_C) and scores.numel():
            scores.view(-1).index_add_(0, key_C, value_C)
        return scores

    def added_to_pairs(self, scores_E: Tensor, row_E: Tensor, token_E: Tensor, depth: int) -> Tensor:
        """The same for the scores of some (row, token) pairs, which are in order, by row and then by token."""
        if not len(token_E) or not self.tokens_UPT.numel():
            return scores_E
        stride = int(max(self.tokens_UPT.max(), token_E.max())) + 1
        (key_C, value_C), asked_E = self.numbers(depth, stride), row_E * stride + token_E
        # Few tokens get a number, so these are looked up among the pairs and not the other way round.
        place_C = torch.searchsorted(asked_E, key_C).clamp_max(len(asked_E) - 1)
        there_C = asked_E[place_C] == key_C
        scores_E[place_C[there_C]] += value_C[there_C]
        return scores_E

    def numbers(self, depth: int, stride: int) -> tuple[Tensor, Tensor]:
        """Sorted keys row * stride + token at `depth`, each once, and the number of each."""
        raise NotImplementedError

    def keys(self, depth: int, stride: int, chosen_UP: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The keys of the chosen open items that have a token at `depth`, with their users and indices; not sorted."""
        there_UP = chosen_UP & (self.lengths_UP > depth)
        marked_UWP = self.open_UWP & there_UP[:, None]
        # NumPy finds the few marks six times as fast as torch.
        mark_C = np.flatnonzero(marked_UWP.numpy())
        if not len(mark_C):
            return (torch.zeros(0, dtype=torch.int64),) * 3
        row_C, item_C = (torch.as_tensor(found) for found in np.divmod(mark_C, marked_UWP.shape[2]))
        user_C = row_C // marked_UWP.shape[1]
        return row_C * stride + self.tokens_UPT[user_C, item_C, depth], user_C, item_C


def padded_items(items: Ragged, own: Ragged) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, lengths and marks of items before the first step: all are open. `own` has one row for each item."""
    tokens_MT = own.dense(PAD).astype(np.int64)
    users, most = len(items), int(items.lengths.max()) if len(items) else 0
    tokens_UPT = torch.full((users, most, tokens_MT.shape[1]), PAD, dtype=torch.int64)
    tokens_UPT[items.row_numbers, items.positions] = torch.as_tensor(tokens_MT)
    lengths_UP = torch.zeros(users, most, dtype=torch.int64)
    lengths_UP[items.row_numbers, items.positions] = torch.as_tensor(own.lengths)
    return tokens_UPT, lengths_UP, (lengths_UP > 0)[:, None]


# The bias may have to grow large while optimiser steps are small, so it is this many times its parameter.
REACH = 10.0


class Repeats(nn.Module):
    """The learnt bias; it starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def start(self) -> None:
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
    """For every predicted token: which tokens, predicted instead, would complete an earlier item of the sequence. Rows
    are numbered as in `predict`: the tokens of the lesson's items, in order."""
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
