"""Beam search over real items: a hypothesis is a path of the trie, finished ones compete until none can be beaten.

A hypothesis' score is the sum of its tokens' log-probabilities under a softmax over the whole vocabulary; tokens
outside the trie are left out without renormalising (protocol). Scores only fall, so the search stops when no unfinished
hypothesis beats the k-th finished one; a beam as wide as the catalogue gives exact results (methods 9.8). Knows a
protocol, not a network. Shapes: U users, W beams, E edges, V vocabulary, F finished.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from capsid.decode.filters import Filter
from capsid.decode.protocol import Decodable
from capsid.errors import ConfigError
from capsid.ids.reading import TokenBatch
from capsid.ids.trie import ROOT, Trie
from capsid.memory import keep_freed_memory
from capsid.ragged import Ragged
from capsid.settings import check_settings, setting

# Fewer rows than this a step cost a model about as much as this many.
_WAVE_ROWS = 512


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
    width: int = setting(50, "Hypotheses kept per user and step; never fewer than the items asked for.", least=1)

    def __post_init__(self) -> None:
        check_settings(self)

    def search(
        self, model: Decodable, histories: TokenBatch, trie: Trie, *, k: int, only: Filter | None = None
    ) -> RankedLeaves:
        """The k best leaves for every history."""
        if k < 1:
            raise ConfigError(f"k is {k}, but at least one item must be asked for")
        keep_freed_memory()
        return _search(model, histories, trie, max(self.width, k), k, only)


@torch.inference_mode()
def _search(
    model: Decodable, histories: TokenBatch, trie: Trie, width: int, k: int, only: Filter | None
) -> RankedLeaves:
    users = len(histories)
    state, logits = model.start(histories)
    first_UV = logits.log_softmax(-1)
    finished = _Finished(users, k)
    ways = _ways(trie, np.full((users, 1), ROOT, dtype=np.int64), only)
    edges = _scored(ways, torch.zeros(users, 1), first_UV)
    steps = 1
    while True:
        finished.add(edges.select(edges.leaf))
        best = _best(edges.select(~edges.leaf), users, width, finished.bound())
        if best is None:
            break
        steps += 1
        ways = _ways(trie, best.nodes, only)
        if ways.leaf.all():
            _last_step(model, state, best, ways, finished)
            break
        state, logits = model.step(state, best.parents, best.tokens)
        edges = _scored(ways, best.scores, logits.log_softmax(-1))
    return RankedLeaves(finished.nodes.numpy(), finished.scores.numpy(), first_UV.numpy(), steps)


@dataclass(frozen=True, eq=False)
class _Ways:
    """Edges out of live beams, before they have scores: ordered by row (user, then beam), then trie order."""

    row: np.ndarray
    token: np.ndarray
    node: np.ndarray
    leaf: np.ndarray

    def select(self, mask: np.ndarray) -> _Ways:
        return _Ways(self.row[mask], self.token[mask], self.node[mask], self.leaf[mask])


@dataclass(frozen=True, eq=False)
class _Edges:
    """Hypotheses one token longer, ordered by user, then beam, then trie order."""

    user: np.ndarray
    beam: np.ndarray
    token: np.ndarray
    node: np.ndarray
    leaf: np.ndarray
    score: Tensor

    def select(self, mask: np.ndarray) -> _Edges:
        if mask.all():
            return self
        user, beam, token, node, leaf = (c[mask] for c in (self.user, self.beam, self.token, self.node, self.leaf))
        return _Edges(user, beam, token, node, leaf, self.score[torch.from_numpy(mask)])


def _ways(trie: Trie, nodes_UW: np.ndarray, only: Filter | None) -> _Ways:
    """All children of all live beams (-1 marks a dead one), closed nodes left out."""
    live = np.flatnonzero(nodes_UW.ravel() >= 0)
    children = trie.children(nodes_UW.ravel()[live])
    ways = _Ways(live[children.parent], children.token, children.node, trie.is_leaf(children.node))
    return ways if only is None else ways.select(only.open(ways.row // nodes_UW.shape[1], ways.node))


def _scored(ways: _Ways, scores_UW: Tensor, log_probabilities: Tensor) -> _Edges:
    """The ways with the scores of their hypotheses."""
    beams, vocabulary = scores_UW.shape[1], log_probabilities.shape[-1]
    row = torch.from_numpy(ways.row)
    place = row * vocabulary + torch.from_numpy(ways.token)
    score = scores_UW.reshape(-1)[row] + log_probabilities.reshape(-1)[place]
    return _Edges(ways.row // beams, ways.row % beams, ways.token, ways.node, ways.leaf, score)


def _last_step(model: Decodable, state: Any, best: _Best, ways: _Ways, finished: _Finished) -> None:
    """Every hypothesis needs one more token to be an item. The best are asked first, because the k-th score that they
    reach settles most of the others without asking the model; the result is the same.
    """
    users, beams = best.nodes.shape
    wave = max(finished.k + finished.k // 2 + 1, -(-_WAVE_ROWS // users))
    alive_UW, beam = torch.from_numpy(best.nodes >= 0), ways.row % beams
    done = 0
    while True:
        # At the bound itself one may still come in by trie order.
        open_UW = alive_UW & (best.scores >= finished.bound())
        # Scores fall along a row, so what is open stands first.
        stop = min(done + wave, int(open_UW.sum(1).max()))
        if stop <= done:
            return
        columns = slice(done, stop)
        _, logits = model.step(state, best.parents[:, columns], best.tokens[:, columns])
        asked = ways.select((beam >= done) & (beam < stop) & open_UW.numpy().ravel()[ways.row])
        asked = replace(asked, row=asked.row // beams * (stop - done) + asked.row % beams - done)
        finished.add(_scored(asked, best.scores[:, columns], logits.log_softmax(-1)))
        done = stop


def _by_user(edges: _Edges, users: int, *columns: np.ndarray) -> tuple[Tensor, list[Tensor]]:
    """Edges as rows by user: scores filled with -inf, columns with -1."""
    counts = np.bincount(edges.user, minlength=users)
    place = Ragged.ranges(0, counts).values
    width = max(int(counts.max()) if users else 0, 1)
    index = torch.from_numpy(edges.user * width + place)
    scores = torch.full((users * width,), -torch.inf).index_copy_(0, index, edges.score)
    filled = []
    for values in columns:
        out = torch.full((users * width,), -1, dtype=torch.int64)
        filled.append(out.index_copy_(0, index, torch.from_numpy(values)).view(users, width))
    return scores.view(users, width), filled


def _top(scores_UE: Tensor, nodes_UE: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of every row and their columns, best first; equal scores by node, which torch's topk leaves open."""
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
