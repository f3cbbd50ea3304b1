"""What rankers need from a model: read histories once, step all beams together, score the requested tokens.

Also what they need from item vectors, if a method has them beside ids, and log-probabilities of the edges of a trie:
scores normalised over the whole vocabulary, or over a node's children. Over children, the probabilities of all items
sum to 1, and a model scores only the tokens that can follow. Over the vocabulary, impossible tokens keep their share.
Filters are applied afterwards and never renormalise.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from capsid.base.blocks.segments import segment_logsumexp
from capsid.ids.reading import TokenBatch
from capsid.ids.trie import Over


class Decodable(Protocol):
    """A next-token model over the tokens of a trie. Scores are not normalised: `capsid.decode.protocol` does that. Rows
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
