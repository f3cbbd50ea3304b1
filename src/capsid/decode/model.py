"""A fitted method as a search sees it: the network, the items' ids, their tries, and what probabilities are over.

Items have one id or several, each of its own system with its own trie. A search walks one trie; `on` gives the same
model with another. Rankers read histories and score items with it. Knows item numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsid.decode.filters import Filter
from capsid.decode.protocol import Decodable, Dense, PredictsSystems, root_log_probabilities
from capsid.errors import ConfigError
from capsid.ids.reading import ItemTokens, ReadableIds, TokenBatch
from capsid.ids.trie import ROOT, Children, Over, Trie
from capsid.ragged import Ragged

# If fewer tokens than one of this many can begin an id, only those are scored.
FEW_OF = 8


@dataclass(frozen=True, eq=False)
class FittedModel:
    """`history` is how many items of a history are read; `over` is what a token's probability is normalised over.

    `tries` has one trie for each id system of `item_ids`; `system` is the number of the one that is searched. `dense`
    are vectors beside the ids, where the method has them.
    """

    network: Decodable
    item_ids: ReadableIds
    tries: tuple[Trie, ...]
    history: int
    over: Over = "vocabulary"
    dense: Dense | None = None
    system: int = 0

    @property
    def trie(self) -> Trie:
        """The trie that is searched."""
        return self.tries[self.system]

    @property
    def ids(self) -> ItemTokens:
        """The ids in that trie."""
        return self.item_ids.systems[self.system]

    def on(self, system: int) -> FittedModel:
        """The same model, which searches the ids of another system."""
        return replace(self, system=system)

    def read(self, histories: Ragged, *, variant: int = 0) -> TokenBatch:
        """Histories (rows of item numbers) as network input; `variant` as in `capsid.ids.reading.Reading`."""
        return self.item_ids.read(histories, last=self.history, variant=variant)

    def start(self, histories: Ragged, *, variant: int = 0) -> tuple[Any, Tensor]:
        """The network's state after histories, and the rows that predict the first token."""
        batch = self.read(histories, variant=variant)
        state, rows_U1D = self.network.start(batch, None if self.dense is None else self.dense.inputs(batch))
        return self.in_system(state, batch), rows_U1D

    def in_system(self, state: Any, batch: TokenBatch) -> Any:
        """The network's state after `batch` was read, to predict the ids of the system that is searched."""
        if self.system == 0:
            return state
        if not isinstance(self.network, PredictsSystems):
            raise ConfigError("the generator predicts the first id of an item alone", hint="set generator=timeline")
        return self.network.in_system(state, batch.seen_as(self.ids.prefix_free), self.system)

    @property
    def root(self) -> Children:
        """The root's children, in trie order."""
        return self.trie.children(np.array([ROOT]))

    def first_scores(self, state: Any, rows_U1D: Tensor) -> Tensor:
        """Log-probabilities of the root's children, from what `start` gave, in trie order. Shape: (U, children)."""
        token_C = self.root.token
        many = len(token_C) * FEW_OF >= self.ids.layout.vocabulary
        return root_log_probabilities(self.network, state, rows_U1D, token_C, self.over, all_tokens=many)

    @torch.inference_mode()
    def root_scores(self, histories: Ragged) -> np.ndarray:
        """Log-probabilities of the root's children after every history, in trie order. Shape: (U, children)."""
        return self.first_scores(*self.start(histories)).numpy()

    def filter(
        self,
        users: int,
        *,
        seen: Ragged | None = None,
        allow: np.ndarray | None = None,
        deny: np.ndarray | None = None,
        blocked: np.ndarray | None = None,
    ) -> Filter | None:
        """Which items each user may get, see `Filter.build`; None: all."""
        if (seen is None or not len(seen.values)) and allow is None and deny is None and blocked is None:
            return None
        return Filter.build(self.trie, users, seen=seen, allow=allow, deny=deny, blocked=blocked)
