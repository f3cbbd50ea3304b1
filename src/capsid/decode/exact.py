"""Scores the whole catalogue without beams or pruning: the slow twin of the beam search, and also a ranker.

`ExactScoring` feeds every item's tokens through the model as one beam and scores all tokens at every step.
`ParallelScoring` is for models whose step does not read the tokens before: it adds the same logs, but a code's score
is looked up instead of computed once for every item.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from capsid.decode.filters import Filter
from capsid.decode.model import FittedModel
from capsid.decode.ranked import RankedLeaves, RanksLeaves
from capsid.decode.watch import Watch
from capsid.ids.layout import PAD
from capsid.ids.trie import ROOT
from capsid.ragged import Ragged


@dataclass(kw_only=True, frozen=True)
class ExactScoring(RanksLeaves):
    """Ranks by the score of every id. Exact and slow: for small catalogues, and as a reference for searches."""

    kind: ClassVar[str] = "exact"

    @property
    def width(self) -> int:
        """Unlimited: the first items never depend on how many are asked for."""
        return sys.maxsize

    def scores(self, model: FittedModel, histories: Ragged) -> Tensor:
        """Log-probability of every item's id after every history. Shape: (users, items)."""
        return exact_scores(model, histories)

    def leaves(
        self, model: FittedModel, histories: Ragged, k: int, allowed: Filter | None = None, watch: Watch | None = None
    ) -> RankedLeaves:
        """The k best leaves after every history; equal scores in trie order. The watch is not called."""
        leaves_F = np.sort(model.trie.leaves)
        first_F = model.trie.items[model.trie.low[leaves_F]]
        scores_UF = self.scores(model, histories).numpy()[:, first_F]
        seen_U = np.exp(scores_UF.astype(np.float64)).sum(1) if model.over == "children" else None
        if allowed is not None:
            user, leaf = np.divmod(np.arange(scores_UF.size), len(leaves_F))
            blocked = ~allowed.open(user, leaves_F[leaf]).reshape(scores_UF.shape)
            scores_UF = np.where(blocked, -np.inf, scores_UF)
        # Equal scores: the smallest node first, as in the beam search.
        order_UF = np.argsort(-scores_UF, axis=1, kind="stable")[:, :k]
        best_UF = np.take_along_axis(scores_UF, order_UF, axis=1).astype(np.float32)
        return RankedLeaves(np.where(best_UF > -np.inf, leaves_F[order_UF], -1), best_UF, 0, seen_U)


@torch.inference_mode()
def exact_scores(model: FittedModel, histories: Ragged, *, chunk: int = 512) -> Tensor:
    """Log-probability of every item's id after every history. Shape: (users, items)."""
    state, rows_U1D = model.start(histories)
    rows = model.ids.prefix_free
    # Sorted by length, because a chunk takes as many steps as its longest id.
    order_N = np.argsort(rows.lengths_of(np.arange(len(rows))), kind="stable")
    scores_UN = torch.empty(len(histories), len(rows))
    for start in range(0, len(rows), chunk):
        items = order_N[start : start + chunk]
        tokens_WT = torch.as_tensor(rows.take(items).dense(PAD)).long()
        scores_UN[:, torch.as_tensor(items)] = _score(model, state, rows_U1D, tokens_WT)
    return scores_UN


def _score(model: FittedModel, state: Any, rows_U1D: Tensor, tokens_WT: Tensor) -> Tensor:
    users, beams = len(rows_U1D), len(tokens_WT)
    nodes_W = np.full(beams, ROOT)
    logits_UWV = model.network.scores(state, rows_U1D).expand(users, beams, -1)
    total_UW = torch.zeros(users, beams)
    for depth in range(tokens_WT.shape[1]):
        tokens_UW = tokens_WT[:, depth].expand(users, beams)
        here_UW = _normalised(model, logits_UWV, nodes_W).gather(2, tokens_UW[..., None])[..., 0]
        total_UW += torch.where(tokens_UW == PAD, torch.zeros(()), here_UW)
        if depth + 1 < tokens_WT.shape[1]:
            # Beams of shorter ids step over padding, whose scores are not added.
            parents = torch.arange(beams).expand(users, beams) if depth else torch.zeros(users, beams, dtype=torch.long)
            state, rows_UWD = model.network.step(state, parents, tokens_UW)
            logits_UWV = model.network.scores(state, rows_UWD)
            nodes_W = np.maximum(model.trie.walk(nodes_W, tokens_WT[:, depth].numpy()), ROOT)
    return total_UW


def _normalised(model: FittedModel, logits_UWV: Tensor, nodes_W: np.ndarray) -> Tensor:
    if model.over == "vocabulary":
        return logits_UWV.log_softmax(-1)
    children = model.trie.children(nodes_W)
    allowed_WV = torch.zeros(logits_UWV.shape[1:], dtype=torch.bool)
    allowed_WV[children.parent, children.token] = True
    return logits_UWV.masked_fill(~allowed_WV, -torch.inf).log_softmax(-1)


@dataclass(kw_only=True, frozen=True)
class ParallelScoring(ExactScoring):
    """Ranks by the sum of the logs of independent codes; exact, and as fast as the scores of one id for each depth."""

    kind: ClassVar[str] = "parallel-scoring"

    @torch.inference_mode()
    def scores(self, model: FittedModel, histories: Ragged) -> Tensor:
        tokens_NT = torch.as_tensor(model.ids.prefix_free.take(np.arange(len(model.ids.prefix_free))).dense(PAD)).long()
        state, rows_U1D = model.start(histories)
        parents_U1 = torch.zeros(len(histories), 1, dtype=torch.long)
        total_UN = torch.zeros(len(histories), len(tokens_NT))
        for depth in range(tokens_NT.shape[1]):
            if depth:
                # Which token is appended makes no difference.
                state, rows_U1D = model.network.step(
                    state, parents_U1, tokens_NT[:1, depth - 1].expand(len(histories), 1)
                )
            tokens_N = tokens_NT[:, depth]
            found_UN = model.network.scores(state, rows_U1D)[:, 0].log_softmax(-1)[:, tokens_N]
            total_UN += torch.where(tokens_N == PAD, torch.zeros(()), found_UN)
        return total_UN
