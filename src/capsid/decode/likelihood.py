"""Log-probabilities of the edges of a trie: scores normalised over the whole vocabulary, or over a node's children.

Over children, the probabilities of all items sum to 1, and a model scores only the tokens that can follow. Over the
vocabulary, impossible tokens keep their share. Filters are applied afterwards and never renormalise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsid.base.blocks.cross_entropy import segment_logsumexp
from capsid.decode.protocol import Decodable
from capsid.ids.trie import Over


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

    Shape: (E,).
    """
    row_E, token_E = torch.as_tensor(row), torch.as_tensor(token)
    if over == "vocabulary":
        # Dead beams have no edges. Scoring them over the whole vocabulary would cost more than all the rest.
        row_R, place = np.unique(row, return_inverse=True)
        log_RV = model.scores(state, rows_UWD, torch.as_tensor(row_R)).log_softmax(-1)
        return log_RV.reshape(-1)[torch.as_tensor(place) * log_RV.shape[-1] + token_E]
    scores_E = model.scores_of(state, rows_UWD, row_E, token_E)
    totals = segment_logsumexp(scores_E, row_E, rows_UWD.shape[0] * rows_UWD.shape[1])
    return scores_E - totals[row_E]
