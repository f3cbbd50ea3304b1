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
from capsid.ids.flatten import TokenBatch
from capsid.ids.layout import PAD
from capsid.ragged import Ragged, offsets_of

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
        _, beams, vocabulary = logits_UWV.shape
        user_E, beam_E, place_E = (self.open_UWP & (self.lengths_UP == depth + 1)[:, None]).nonzero(as_tuple=True)
        if not len(user_E):
            return logits_UWV
        key_E = (user_E * beams + beam_E) * vocabulary + self.tokens_UPT[user_E, place_E, depth]
        # An item that stands twice in a history counts once.
        key_E = key_E.unique()
        logits_UWV.view(-1).index_add_(0, key_E, self.value.expand(len(key_E)))
        return logits_UWV


def taken(histories: TokenBatch, value: Tensor) -> Taken:
    """Before the first token: every item of the history is open."""
    items_MT, lengths_M, user_M, place_M = _items(histories)
    users, places = len(histories), int(histories.items_B.max())
    tokens_UPT = torch.full((users, places, items_MT.shape[1]), PAD, dtype=torch.int64)
    tokens_UPT[user_M, place_M] = torch.from_numpy(items_MT)
    lengths_UP = torch.zeros(users, places, dtype=torch.int64)
    lengths_UP[user_M, place_M] = torch.from_numpy(lengths_M)
    return Taken(tokens_UPT, lengths_UP, (lengths_UP > 0)[:, None], value)


def completions(batch: TokenBatch, value: Tensor) -> Added:
    """For every token of every item but the first: which tokens in its stead would complete an item that came before.

    Rows are counted as `predict` has them: tokens of second and later items, in order.
    """
    items_MT, lengths_M, _, place_M = _items(batch)
    back = Ragged.ranges(0, place_M)
    later_P = back.row_numbers
    earlier_P = later_P - 1 - back.values
    last_P = lengths_M[earlier_P] - 1
    same_PT = items_MT[earlier_P] == items_MT[later_P]
    open_P = (same_PT | (np.arange(items_MT.shape[1]) >= last_P[:, None])).all(1)
    later_P, earlier_P, last_P = later_P[open_P], earlier_P[open_P], last_P[open_P]
    sizes_M = np.where(place_M >= 1, lengths_M, 0)
    row_P = offsets_of(sizes_M)[later_P] + last_P
    # In order of rows, and an item that came twice counts once.
    vocabulary = int(items_MT.max()) + 1
    row_E, token_E = np.divmod(np.unique(row_P * vocabulary + items_MT[earlier_P, last_P]), vocabulary)
    return Added(torch.from_numpy(row_E), torch.from_numpy(token_E), value)


def _items(batch: TokenBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, length, user and place of every item of a batch, in order."""
    user_R, column_R = np.nonzero(batch.tokens_BL != PAD)
    depth_R = batch.depths_BL[user_R, column_R]
    first_M = np.flatnonzero(depth_R == 0)
    lengths_M = np.diff(np.append(first_M, len(depth_R)))
    items_MT = np.full((len(first_M), int(lengths_M.max())), PAD, dtype=np.int64)
    items_MT[np.repeat(np.arange(len(first_M)), lengths_M), depth_R] = batch.tokens_BL[user_R, column_R]
    return items_MT, lengths_M, user_R[first_M], batch.places_BL[user_R[first_M], column_R[first_M]]
