"""A network with a memory beside it: scores of tokens that lead to remembered items get their bonuses.

On a trie the counts of a node are the sums over its items, so that every prefix of a likely item rises. Knows tokens
and counts, and the decoder's protocol instead of a network. Shapes: J weights, as in `capsid.generate.open_items`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from capsid.decode.protocol import Decodable, PredictsSystems
from capsid.errors import ConfigError
from capsid.generate.open_items import OpenItems, padded_items
from capsid.ids.histories import ReadableIds
from capsid.ids.reading import TokenBatch
from capsid.memory.followers import Followers
from capsid.memory.memory import FittedMemory


@dataclass(frozen=True, eq=False)
class RememberedItems(OpenItems):
    """The remembered items of every user, as far as each beam may still become them."""

    counts_UPJ: Tensor
    memory: FittedMemory

    @classmethod
    def of(cls, found: Followers, memory: FittedMemory) -> RememberedItems:
        """The state before the first token."""
        tokens_UPT, lengths_UP, open_UWP = padded_items(found.items, found.own)
        counts_UPJ = torch.zeros(*lengths_UP.shape, found.counts_EJ.shape[1])
        counts_UPJ[found.items.row_numbers, found.items.positions] = torch.as_tensor(found.counts_EJ)
        return cls(tokens_UPT, lengths_UP, open_UWP, counts_UPJ, memory)

    def numbers(self, depth: int, stride: int) -> tuple[Tensor, Tensor]:
        """The bonus of every token that leads to a remembered item."""
        key_E, user_E, item_E = self.keys(depth, stride, self.lengths_UP > 0)
        key_C, entry_E = key_E.unique(return_inverse=True)
        counts_CJ = torch.zeros(len(key_C), self.counts_UPJ.shape[2])
        counts_CJ.index_add_(0, entry_E, self.counts_UPJ[user_E, item_E])
        return key_C, self.memory.bonus(counts_CJ)


@dataclass(frozen=True, eq=False)
class _State:
    """The network's state, the remembered items, and how many tokens every beam has."""

    inner: Any
    items: RememberedItems
    depth: int = 0


@dataclass(frozen=True, eq=False)
class Remembering:
    """A network and a memory as one, see `capsid.decode.protocol.Decodable`."""

    network: Decodable
    memory: FittedMemory
    item_ids: ReadableIds

    def start(self, histories: TokenBatch, inputs_RD: Tensor | None = None) -> tuple[_State, Tensor]:
        """Read histories once."""
        inner, rows_U1D = self.network.start(histories, inputs_RD)
        return _State(inner, self._remembered(histories, 0)), rows_U1D

    def in_system(self, state: _State, histories: TokenBatch, system: int) -> _State:
        """See `capsid.decode.protocol.PredictsSystems`."""
        if not isinstance(self.network, PredictsSystems):
            raise ConfigError("the generator predicts the first id of an item alone", hint="set generator=timeline")
        return _State(self.network.in_system(state.inner, histories, system), self._remembered(histories, system))

    def step(self, state: _State, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[_State, Tensor]:
        """One more token for every beam."""
        inner, rows_UWD = self.network.step(state.inner, parents_UW, tokens_UW)
        items = state.items.on(parents_UW, tokens_UW, state.depth)
        return replace(state, inner=inner, items=items, depth=state.depth + 1), rows_UWD

    def scores(self, state: _State, rows_UWD: Tensor, row_R: Tensor | None = None) -> Tensor:
        """Scores of all tokens, with bonuses."""
        scores = self.network.scores(state.inner, rows_UWD, row_R)
        return self.memory.cooled(state.items.added_to(scores, state.depth, row_R))

    def scores_of(self, state: _State, rows_UWD: Tensor, row_E: Tensor, token_E: Tensor) -> Tensor:
        """Scores of the tokens asked about, with bonuses."""
        scores_E = self.network.scores_of(state.inner, rows_UWD, row_E, token_E)
        return self.memory.cooled(state.items.added_to_pairs(scores_E, row_E, token_E, state.depth))

    def _remembered(self, histories: TokenBatch, system: int) -> RememberedItems:
        tokens = self.item_ids.systems[system].prefix_free
        return RememberedItems.of(self.memory.transitions.following(histories.items, tokens), self.memory)
