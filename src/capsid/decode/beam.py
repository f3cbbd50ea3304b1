"""Beam search over real items: a hypothesis is a path of the trie, finished ones compete until none can be beaten.

A hypothesis' score is the sum of its tokens' log-probabilities under a softmax over the whole vocabulary; tokens
outside the trie are left out without renormalising (protocol). Scores only fall, so the search stops when no unfinished
hypothesis beats the k-th finished one; a beam as wide as the catalogue gives exact results (methods 9.8). Knows a
protocol, not a network. Shapes: U users, W beams, E edges, V vocabulary, F finished.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from capsid.decode.filters import Filter
from capsid.decode.protocol import Decodable
from capsid.errors import ConfigError
from capsid.ids.flatten import TokenBatch
from capsid.ids.trie import ROOT, Trie


@dataclass(frozen=True, eq=False)
class RankedLeaves:
    """For every user the best leaves, best first; -1 and -inf where there are no more. `first_UV`: root's scores."""

    leaves_UF: np.ndarray
    scores_UF: np.ndarray
    first_UV: np.ndarray
    steps: int


@dataclass(kw_only=True, frozen=True)
class BeamSearch:
    """How a recipe decodes."""

    kind: ClassVar[str] = "beam"
    width: int = 50

    def search(
        self, model: Decodable, histories: TokenBatch, trie: Trie, *, k: int, only: Filter | None = None
    ) -> RankedLeaves:
        """The k best leaves for every history."""
        if k < 1:
            raise ConfigError(f"k is {k}, but at least one item must be asked for")
        return _search(model, histories, trie, max(self.width, k), k, only)


@torch.inference_mode()
def _search(
    model: Decodable, histories: TokenBatch, trie: Trie, width: int, k: int, only: Filter | None
) -> RankedLeaves:
    users = len(histories)
    state, logits = model.start(histories)
    first_UV = logits.log_softmax(-1)
    log_probabilities_NV = first_UV
    nodes_UW = np.full((users, 1), ROOT, dtype=np.int64)
    scores_UW = torch.zeros(users, 1)
    finished = _Finished(users, k)
    steps = 0
    while True:
        steps += 1
        edges = _expand(trie, nodes_UW, scores_UW, log_probabilities_NV, only)
        leaf = torch.from_numpy(trie.is_leaf(edges.node))
        finished.add(edges.select(leaf))
        best = _best(edges.select(~leaf), users, width, finished.bound())
        if best is None:
            return RankedLeaves(finished.nodes.numpy(), finished.scores.numpy(), first_UV.numpy(), steps)
        nodes_UW, scores_UW = best.nodes, best.scores
        state, logits = model.step(state, best.parents, best.tokens)
        log_probabilities_NV = logits.flatten(0, 1)
        log_probabilities_NV -= log_probabilities_NV.logsumexp(-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class _Edges:
    """Hypotheses one token longer, ordered by user, then beam, then trie order."""

    user: np.ndarray
    beam: np.ndarray
    token: np.ndarray
    node: np.ndarray
    score: Tensor

    def select(self, mask: Tensor) -> _Edges:
        where = mask.numpy()
        return _Edges(self.user[where], self.beam[where], self.token[where], self.node[where], self.score[mask])


def _expand(
    trie: Trie, nodes_UW: np.ndarray, scores_UW: Tensor, log_probabilities_NV: Tensor, only: Filter | None
) -> _Edges:
    """All children of all live beams (-1 marks a dead one), scored, closed nodes left out."""
    beams = nodes_UW.shape[1]
    live = np.flatnonzero(nodes_UW.ravel() >= 0)
    children = trie.children(nodes_UW.ravel()[live])
    parent, token, node = live[children.parent], children.token, children.node
    if only is not None:
        open_ = only.open(parent // beams, node)
        parent, token, node = parent[open_], token[open_], node[open_]
    parent_t = torch.from_numpy(parent)
    score = scores_UW.flatten()[parent_t] + log_probabilities_NV[parent_t, torch.from_numpy(token)]
    return _Edges(parent // beams, parent % beams, token, node, score)


def _by_user(edges: _Edges, users: int, *columns: np.ndarray) -> tuple[Tensor, list[Tensor]]:
    """Edges as rows by user: scores filled with -inf, columns with -1."""
    counts = np.bincount(edges.user, minlength=users)
    place = np.arange(len(edges.user)) - np.repeat(np.cumsum(counts) - counts, counts)
    width = max(int(counts.max()) if users else 0, 1)
    index = torch.from_numpy(edges.user * width + place)
    scores = torch.full((users * width,), -torch.inf).index_copy_(0, index, edges.score)
    filled = []
    for values in columns:
        out = torch.full((users * width,), -1, dtype=torch.int64)
        filled.append(out.index_copy_(0, index, torch.from_numpy(values)).view(users, width))
    return scores.view(users, width), filled


def _top(scores_UE: Tensor, nodes_UE: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of every row and their columns, best first, equal scores by node: torch's topk leaves ties to chance."""
    # One more than asked for: a tie reaches over the cut where the next value equals the last.
    values, order = scores_UE.topk(min(k + 1, scores_UE.shape[1]), dim=1)
    order_UK, last_U1 = order[:, :k], values[:, k - 1 : k]
    cut = ((values[:, k:] == last_U1) & (last_U1 > -torch.inf)).any(1)
    if cut.any():
        order_UK[cut] = _cut_ties(scores_UE[cut], nodes_UE[cut], last_U1[cut], k)
    order_UK = order_UK.gather(1, nodes_UE.gather(1, order_UK).sort(dim=1).indices)
    values_UK, places = scores_UE.gather(1, order_UK).sort(dim=1, descending=True, stable=True)
    return values_UK, order_UK.gather(1, places)


def _cut_ties(scores_UE: Tensor, nodes_UE: Tensor, last_U1: Tensor, k: int) -> Tensor:
    """Columns of the k best where more than fit share the last score: the smallest nodes of those are taken."""
    better_UE, tied_UE = scores_UE > last_U1, scores_UE == last_U1
    room_U1 = k - better_UE.sum(1, keepdim=True)
    far = torch.iinfo(nodes_UE.dtype).max
    smallest_UK = nodes_UE.masked_fill(~tied_UE, far).topk(k, dim=1, largest=False, sorted=True).values
    kept_UE = better_UE | (tied_UE & (nodes_UE <= smallest_UK.gather(1, room_U1 - 1)))
    return kept_UE.nonzero()[:, 1].view(-1, k)


class _Finished:
    """The k best finished hypotheses of every user; equal scores in trie order."""

    def __init__(self, users: int, k: int) -> None:
        self.k = k
        self.scores = torch.full((users, k), -torch.inf)
        self.nodes = torch.full((users, k), -1, dtype=torch.int64)

    def add(self, edges: _Edges) -> None:
        if not len(edges.user):
            return
        scores, (nodes,) = _by_user(edges, len(self.scores), edges.node)
        scores = torch.cat([self.scores, scores], dim=1)
        nodes = torch.cat([self.nodes, nodes], dim=1)
        self.scores, order = _top(scores, nodes, self.k)
        self.nodes = nodes.gather(1, order)

    def bound(self) -> Tensor:
        """A hypothesis at or below this cannot enter any more. Shape: (U, 1)."""
        return self.scores[:, -1:]


@dataclass(frozen=True, eq=False)
class _Best:
    nodes: np.ndarray
    scores: Tensor
    parents: Tensor
    tokens: Tensor


def _best(edges: _Edges, users: int, width: int, bound_U1: Tensor) -> _Best | None:
    """The `width` best unfinished hypotheses that can still win; None when there are none."""
    if not len(edges.user):
        return None
    scores, (beam, token, node) = _by_user(edges, users, edges.beam, edges.token, edges.node)
    scores, order = _top(scores, node, min(width, scores.shape[1]))
    alive = scores > bound_U1
    most = int(alive.sum(1).max())
    if most == 0:
        return None
    # Survivors stand first, because scores fall along a row: the rest of the columns can go.
    order, alive, scores = order[:, :most], alive[:, :most], scores[:, :most]
    nodes = node.gather(1, order).masked_fill_(~alive, -1)
    parents = beam.gather(1, order).masked_fill_(~alive, 0)
    tokens = token.gather(1, order).masked_fill_(~alive, 0)
    return _Best(nodes.numpy(), scores, parents, tokens)
