"""Whether people take an item again: one learnt number, added where a token would complete an item of the history.

Where nobody comes back it falls, and what users have already no longer takes the places of what they have not; where
people buy again it rises. Nothing is forbidden: the data decide, by the loss of the next token. Knows tokens only; an
id that several items share counts as one. Shapes: M items of a batch, T tokens of an item, P places (in `completions`:
pairs of items), E entries, otherwise as in `capsid.generate.network`.
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

# The number may have to go far, and an optimiser's steps are small: it is this many times its parameter.
REACH = 10.0


class Repeats(nn.Module):
    """The number, at first nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def start(self) -> None:
        """As if nothing were known of it."""
        nn.init.zeros_(self.weight)

    def value(self) -> Tensor:
        """What is added to a score."""
        return REACH * self.weight


@dataclass(frozen=True, eq=False)
class Taken:
    """The items of every user's history, and of each beam which of them it has the first tokens of."""

    tokens_UPT: Tensor
    lengths_UP: Tensor
    open_UWP: Tensor
    value: Tensor

    def on(self, parents_UW: Tensor, tokens_UW: Tensor, depth: int) -> Taken:
        """After every beam took a token, its item's `depth`-th."""
        users_U1 = torch.arange(len(parents_UW))[:, None]
        open_UWP = self.open_UWP[users_U1, parents_UW]
        if depth < self.tokens_UPT.shape[2]:
            open_UWP = open_UWP & (self.tokens_UPT[:, None, :, depth] == tokens_UW[..., None])
        return replace(self, open_UWP=open_UWP)

    def added_to(self, logits_UWV: Tensor, depth: int) -> Tensor:
        """The scores of tokens at `depth`, with the number where one completes an open item. Changes what is given:
        a copy of all scores would cost more than the rest of a step."""
        vocabulary = logits_UWV.shape[-1]
        key_E = self._completing(depth, vocabulary)
        if len(key_E):
            logits_UWV.view(-1).index_add_(0, key_E, self.value.expand(len(key_E)))
        return logits_UWV

    def added_of(self, row_E: Tensor, token_E: Tensor, depth: int) -> Tensor:
        """What is added to the score of each token asked about; rows are counted user by user. Shape: (E,)."""
        stride = int(max(self.tokens_UPT.max(), token_E.max())) + 1 if len(token_E) else 1
        key_C, asked_E = self._completing(depth, stride), row_E * stride + token_E
        if not len(key_C):
            return torch.zeros(len(token_E))
        found_E = torch.searchsorted(key_C, asked_E).clamp_max(len(key_C) - 1)
        return torch.where(key_C[found_E] == asked_E, self.value, torch.zeros(()))

    def _completing(self, depth: int, stride: int) -> Tensor:
        """Where a token at `depth` completes an open item, as row * stride + token, sorted. Shape: (entries,)."""
        beams = self.open_UWP.shape[1]
        user_E, beam_E, item_E = (self.open_UWP & (self.lengths_UP == depth + 1)[:, None]).nonzero(as_tuple=True)
        if not len(user_E):
            return user_E
        # An item that stands twice in a history counts once.
        return ((user_E * beams + beam_E) * stride + self.tokens_UPT[user_E, item_E, depth]).unique()


def taken(histories: TokenBatch, value: Tensor) -> Taken:
    """Before the first token: every item of the history is open."""
    items_MT, lengths_M = histories.own.dense(PAD).astype(np.int64), histories.own.lengths
    items = histories.items
    users, most = len(histories), int(items.lengths.max())
    tokens_UPT = torch.full((users, most, items_MT.shape[1]), PAD, dtype=torch.int64)
    tokens_UPT[items.row_numbers, items.positions] = torch.from_numpy(items_MT)
    lengths_UP = torch.zeros(users, most, dtype=torch.int64)
    lengths_UP[items.row_numbers, items.positions] = torch.from_numpy(lengths_M)
    return Taken(tokens_UPT, lengths_UP, (lengths_UP > 0)[:, None], value)


def completions(lesson: Lesson, value: Tensor) -> Added:
    """For every token that is predicted: which tokens in its place would complete an item that came before.

    Rows are counted as `predict` has them: the tokens of the lesson's items, in order.
    """
    own, before_M = lesson.batch.own, lesson.before_M
    items_IT, lengths_I = own.dense(PAD).astype(np.int64), own.lengths
    # A pair for each predicted item and each item of its history, the latest first.
    back = Ragged.ranges(0, before_M)
    later_P = back.row_numbers
    own_M = lesson.batch.items.offsets[lesson.row_M] + before_M
    earlier_P = own_M[later_P] - 1 - back.values
    last_P = lengths_I[earlier_P] - 1
    same_PT = items_IT[earlier_P] == items_IT[own_M[later_P]]
    open_P = (same_PT | (np.arange(items_IT.shape[1]) >= last_P[:, None])).all(1)
    later_P, earlier_P, last_P = later_P[open_P], earlier_P[open_P], last_P[open_P]
    row_P = lesson.tokens.offsets[:-1][later_P] + last_P
    # In order of rows, and an item that came twice counts once.
    vocabulary = int(items_IT.max()) + 1
    row_E, token_E = np.divmod(np.unique(row_P * vocabulary + items_IT[earlier_P, last_P]), vocabulary)
    return Added(torch.from_numpy(row_E), torch.from_numpy(token_E), value)
