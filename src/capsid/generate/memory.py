"""The memory of transitions: items that followed the last items of a history in training get a learnt bonus.

A token's score gets sum_j a_j log(1 + c_j), where c_j counts how often the items below that token came j positions
after the j-th last item. With neighbours there are as many weights again, for how much these items are like the j-th
last item. The weights a_j are learnt with the next-token loss, where the predicted pair is left out of
the counts. On a trie the counts of a node are the sums over its items, so that every prefix of a likely item rises.
In a search, scores with bonuses are divided by the temperature that the weights were fitted for, so that probabilities
are those of the fit.
Knows tokens and counts only. Shapes: J weights, M predicted items, T tokens of an item, E entries, otherwise as in
`capsid.generate.open_items`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from capsid.blocks.cross_entropy import Added
from capsid.errors import ArtifactError, ConfigError
from capsid.generate.open_items import OpenItems, padded_items
from capsid.ids.layout import PAD
from capsid.ids.reading import Lesson, TokenBatch
from capsid.ids.transitions import Followers

# What a memory that is fitted after training adds to a generator's state.
NAMES = ("memory.weight", "memory.temperature")
# The weights have to grow to about 1 while optimiser steps are small, so they are this many times their parameters.
REACH = 10.0


class Memory(nn.Module):
    """The learnt weights; they start at 0. Nothing is added while it is not `awake`.

    `temperature` stays 1 if the weights are trained with the network.
    """

    temperature: Tensor

    def __init__(self, weights: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(weights))
        self.register_buffer("temperature", torch.ones(()))
        self.awake = True

    def start(self) -> None:
        """Weights of 0, temperature 1."""
        nn.init.zeros_(self.weight)
        nn.init.ones_(self.temperature)

    def cooled(self, scores: Tensor) -> Tensor:
        """Scores with bonuses, divided by the temperature."""
        return scores / self.temperature if self.awake and float(self.temperature) != 1.0 else scores

    def bonus(self, counts_EJ: Tensor) -> Tensor:
        """What is added to scores. Shape: (E,)."""
        return counts_EJ.log1p() @ (REACH * self.weight)


@dataclass(frozen=True, eq=False)
class OpenFollowers(OpenItems):
    """The followers of every user's last items, as far as each beam may still become them."""

    counts_UPJ: Tensor
    memory: Memory

    def numbers(self, depth: int, stride: int) -> tuple[Tensor, Tensor]:
        """The bonus of every token that leads to a follower."""
        key_E, user_E, item_E = self.keys(depth, stride, self.lengths_UP > 0)
        key_C, entry_E = key_E.unique(return_inverse=True)
        counts_CJ = torch.zeros(len(key_C), self.counts_UPJ.shape[2])
        counts_CJ.index_add_(0, entry_E, self.counts_UPJ[user_E, item_E])
        return key_C, self.memory.bonus(counts_CJ)


def open_followers(histories: TokenBatch, memory: Memory) -> OpenFollowers:
    """The state before the first token."""
    found = _followers(histories.followers)
    tokens_UPT, lengths_UP, open_UWP = padded_items(found.items, found.own)
    counts_UPJ = torch.zeros(*lengths_UP.shape, found.counts_EJ.shape[1])
    counts_UPJ[found.items.row_numbers, found.items.positions] = torch.as_tensor(found.counts_EJ)
    return OpenFollowers(tokens_UPT, lengths_UP, open_UWP, counts_UPJ, memory)


@dataclass(frozen=True, eq=False)
class Remembered:
    """What a lesson's predictions remember: counts of tokens that lead to followers; pairs are sorted by row."""

    rows_E: Tensor
    tokens_E: Tensor
    counts_EJ: Tensor


def bonuses(lesson: Lesson, memory: Memory) -> Added:
    """What is added to the scores of a lesson's predictions."""
    found = remembered(lesson)
    return Added(found.rows_E, found.tokens_E, memory.bonus(found.counts_EJ))


def remembered(lesson: Lesson) -> Remembered:
    """For every predicted token: each token that leads to a follower and agrees with the tokens before it.

    Rows are numbered as in `predict`: the tokens of the lesson's items, in order.
    """
    found = _followers(lesson.followers)
    case_E, tokens_ET = found.items.row_numbers, found.own.dense(PAD).astype(np.int64)
    target_MT, lengths_M = lesson.tokens.dense(PAD), lesson.tokens.lengths
    stride = int(max(tokens_ET.max(initial=0), target_MT.max(initial=0))) + 1
    open_E = np.arange(len(case_E))
    keys, counts = [np.zeros(0, np.int64)], [found.counts_EJ[:0]]
    for depth in range(min(target_MT.shape[1], tokens_ET.shape[1])):
        open_E = open_E[(found.own.lengths[open_E] > depth) & (lengths_M[case_E[open_E]] > depth)]
        row_E = lesson.tokens.offsets[case_E[open_E]] + depth
        keys.append(row_E * stride + tokens_ET[open_E, depth])
        counts.append(found.counts_EJ[open_E])
        # A follower stays open below this token only if it has the target's token here.
        open_E = open_E[tokens_ET[open_E, depth] == target_MT[case_E[open_E], depth]]
    key_C, entry_E = np.unique(np.concatenate(keys), return_inverse=True)
    counts_CJ = torch.zeros(len(key_C), found.counts_EJ.shape[1])
    counts_CJ.index_add_(0, torch.as_tensor(entry_E), torch.as_tensor(np.concatenate(counts)))
    row_C, token_C = np.divmod(key_C, stride)
    return Remembered(torch.as_tensor(row_C), torch.as_tensor(token_C), counts_CJ)


def with_temperature(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Saved weights, with temperature 1 if they are older than temperatures of memories."""
    weight, temperature = NAMES
    if weight not in state:
        return state
    state = {temperature: torch.ones(()), **state}
    if not (state[temperature] > 0).all():
        raise ArtifactError("the temperature of the saved memory is not above 0", hint="fit again")
    return state


def _followers(found: Followers | None) -> Followers:
    if found is None:
        raise ConfigError("the generator has a memory of transitions, but these ids were read without one")
    return found
