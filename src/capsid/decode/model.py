"""A fitted method as a search sees it: the network, the items' ids, their tries, and what probabilities are over.

Items have one id or several, each of its own system with its own trie. A search walks one trie; `on` gives the same
model with another. `Decodable` is what it needs of a network: read histories once, step all beams together, score the
requested tokens. Log-probabilities of the edges of a trie are scores normalised over the whole vocabulary, or over a
node's children: over children, the probabilities of all items sum to 1, and a network scores only the tokens that can
follow; over the vocabulary, impossible tokens keep their share. Filters are applied afterwards and never renormalise.
Knows item numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from capsid.base.blocks.cross_entropy import segment_logsumexp
from capsid.decode.filters import Filter
from capsid.errors import ConfigError
from capsid.ids.reading import ItemTokens, ReadableIds, TokenBatch
from capsid.ids.trie import ROOT, Children, Over, Trie
from capsid.ragged import Ragged


class Decodable(Protocol):
    """A next-token model over the tokens of a trie. Scores are not normalised: `capsid.decode.model` does that. Rows
    are what a model predicts from, one per user and beam; only the model knows what they hold."""

    def start(self, histories: TokenBatch, inputs_RD: Tensor | None = None) -> tuple[Any, Tensor]:
        """State, and the rows that predict the first token. Shape: (U, 1, D). `inputs_RD` is added to what is read, one
        row for each real token of the batch in turn."""

    def step(self, state: Any, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[Any, Tensor]:
        """State and rows (U, W, D) after every beam appended a token; beam w of user u continues beam parents[u, w]."""

    def scores(self, state: Any, rows_UWD: Tensor, row_R: Tensor | None = None) -> Tensor:
        """Scores of all tokens after each row; the caller may overwrite them. Shape: (U, W, V). With `row_R`, only
        those rows, numbered user by user, each once and in order. Shape: (R, V)."""

    def scores_of(self, state: Any, rows_UWD: Tensor, row_E: Tensor, token_E: Tensor) -> Tensor:
        """Scores of token `token_E[e]` after row `row_E[e]`, rows numbered user by user. Shape: (E,). Pairs come in
        order, by row and then by token, each once."""


@runtime_checkable
class PredictsSystems(Protocol):
    """A network that reads histories once and predicts the ids of any system from that reading."""

    def in_system(self, state: Any, histories: TokenBatch, system: int) -> Any:
        """The state after `start`, to predict the ids of another system; the batch has the items' tokens in it."""


class Dense(Protocol):
    """Vectors of all items beside their ids. They and what is expected have length 1. Shape of vectors: (N, C)."""

    @property
    def vectors_NC(self) -> Tensor:
        """One vector per item of the catalogue."""

    def inputs(self, histories: TokenBatch) -> Tensor | None:
        """What is added to what a model reads of histories, one row for each real token in turn."""

    def expected(self, rows: Tensor) -> Tensor:
        """The vector that is expected after each row behind an id's last token. Shape: (..., C)."""


def root_log_probabilities(
    model: Decodable, state: Any, rows_U1D: Tensor, token: np.ndarray, over: Over, *, all_tokens: bool
) -> Tensor:
    """Log-probabilities of the root's children. With `all_tokens` all tokens are scored, which is cheaper if most of
    them begin an id. Shape: (U, C)."""
    users, token_C = len(rows_U1D), torch.as_tensor(token)
    if over == "vocabulary":
        return model.scores(state, rows_U1D)[:, 0].log_softmax(-1).index_select(1, token_C)
    if all_tokens:
        return model.scores(state, rows_U1D)[:, 0].index_select(1, token_C).log_softmax(-1)
    row_E = torch.arange(users).repeat_interleave(len(token_C))
    return model.scores_of(state, rows_U1D, row_E, token_C.repeat(users)).view(users, -1).log_softmax(-1)


def edge_log_probabilities(
    model: Decodable, state: Any, rows_UWD: Tensor, row: np.ndarray, token: np.ndarray, over: Over
) -> Tensor:
    """Log-probability of every edge; `row` numbers rows user by user, in order; all children of its node are present.
    Shape: (E,)."""
    row_E, token_E = torch.as_tensor(row), torch.as_tensor(token)
    if over == "vocabulary":
        # Dead beams have no edges. Scoring them over the whole vocabulary would cost more than all the rest.
        row_R, place = np.unique(row, return_inverse=True)
        log_RV = model.scores(state, rows_UWD, torch.as_tensor(row_R)).log_softmax(-1)
        return log_RV.reshape(-1)[torch.as_tensor(place) * log_RV.shape[-1] + token_E]
    scores_E = model.scores_of(state, rows_UWD, row_E, token_E)
    totals = segment_logsumexp(scores_E, row_E, rows_UWD.shape[0] * rows_UWD.shape[1])
    return scores_E - totals[row_E]


# If fewer tokens than one of this many can begin an id, only those are scored.
FEW_OF = 8


@dataclass(frozen=True, eq=False)
class FittedModel:
    """`history` is how many items of a history are read; `over` is what a token's probability is normalised over.
    `tries` has one trie for each id system of `item_ids`; `system` is the number of the one that is searched. `dense`
    are vectors beside the ids, where the method has them."""

    network: Decodable
    item_ids: ReadableIds
    tries: tuple[Trie, ...]
    history: int
    over: Over = "vocabulary"
    dense: Dense | None = None
    system: int = 0

    @property
    def trie(self) -> Trie:
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
