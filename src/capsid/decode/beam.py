"""Beam search over real items: a hypothesis is a path in the trie, and every finished one is an item.

A hypothesis' score is the sum of its tokens' log-probabilities (`capsid.decode.model`). Scores never rise, so the
search stops when no unfinished hypothesis can reach the k-th finished one; a beam as wide as the catalogue gives exact
results. Knows a protocol, not a network. Shapes: U users, W beams, E edges, V vocabulary, F finished.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from capsid.base.devices import keep_freed_memory
from capsid.decode.filters import Filter
from capsid.decode.model import FittedModel, edge_log_probabilities
from capsid.decode.ranked import RankedLeaves, RanksLeaves, Searches
from capsid.decode.watch import Edges, FirstEdges, Watch
from capsid.errors import ConfigError
from capsid.ids.trie import Trie
from capsid.ragged import Ragged

# A model step with fewer rows than this costs about as much as one with this many.
_WAVE_ROWS = 512


@dataclass(kw_only=True, frozen=True)
class BeamSearch(Searches, RanksLeaves):
    """Beam search as the decoder of a recipe."""

    kind: ClassVar[str] = "beam"

    def leaves(
        self,
        model: FittedModel,
        histories: Ragged,
        k: int,
        allowed: Filter | None = None,
        watch: Watch | None = None,
        started: tuple[Any, Tensor] | None = None,
    ) -> RankedLeaves:
        """The k best leaves after every history; `started` is what `model.start` gave, if it was asked already."""
        if k < 1:
            raise ConfigError(f"k must be at least 1, got {k}")
        keep_freed_memory()
        return _Search(model, allowed, watch, max(self.width, k), _Finished(len(histories), k)).run(histories, started)


@dataclass(frozen=True, eq=False)
class _Ways:
    """Unscored edges out of live beams, ordered by row (user, then beam), then in trie order. All children of a node
    are included, because scores may be normalised over them; `open` marks those that the filter allows."""

    row: np.ndarray
    token: np.ndarray
    node: np.ndarray
    leaf: np.ndarray
    open: np.ndarray

    def select(self, mask: np.ndarray) -> _Ways:
        return _Ways(self.row[mask], self.token[mask], self.node[mask], self.leaf[mask], self.open[mask])


@dataclass(frozen=True, eq=False)
class _Search:
    model: FittedModel
    allowed: Filter | None
    watch: Watch | None
    width: int
    finished: _Finished

    @torch.inference_mode()
    def run(self, histories: Ragged, started: tuple[Any, Tensor] | None) -> RankedLeaves:
        users, model, finished = len(histories), self.model.network, self.finished
        state, rows = started or self.model.start(histories)
        steps, best = 1, self._first_step(state, rows)
        while best is not None:
            steps += 1
            ways = self._ways(best.nodes)
            if ways.leaf[ways.open].all():
                self._last_step(steps - 1, state, best, ways)
                break
            state, rows = model.step(state, best.parents, best.tokens)
            edges = self._scored(steps - 1, ways, best.scores, state, rows)
            finished.add(edges.select(edges.leaf))
            best = _best(edges.select(~edges.leaf), users, self.width, finished.bound())
        seen_U = finished.seen.numpy() if self.model.over == "children" else None
        return RankedLeaves(finished.nodes.numpy(), finished.scores.numpy(), steps, seen_U)

    def _first_step(self, state: Any, rows_U1D: Tensor) -> _Best | None:
        """The first tokens: all users have the same ones, so scores are a matrix, and no edge is written out."""
        trie, root, users = self.model.trie, self.model.root, len(rows_U1D)
        leaf_C, scores_UC = trie.is_leaf(root.node), self.model.first_scores(state, rows_U1D)
        if self.model.over == "children":
            self.finished.seen += _columns(scores_UC, leaf_C).exp().sum(1)
        open_UC = np.ones(scores_UC.shape, dtype=bool)
        left_UC = scores_UC
        if self.allowed is not None:
            open_UC = self.allowed.open_first(users, root.node)
            left_UC = scores_UC.masked_fill(~torch.as_tensor(open_UC), -torch.inf)
        if self.watch is not None:
            self.watch.begun(FirstEdges(root.token, root.node, leaf_C, scores_UC, open_UC))
        self.finished.begin(_columns(left_UC, leaf_C), torch.as_tensor(root.node[leaf_C]))
        inner_C = ~leaf_C
        if not users or not inner_C.any():
            return None
        left_UC = _columns(left_UC, inner_C)
        token, node = (torch.as_tensor(column[inner_C]).expand(users, -1) for column in (root.token, root.node))
        return _survivors(left_UC, torch.zeros_like(token), token, node, self.width, self.finished.bound())

    def _ways(self, nodes_UW: np.ndarray) -> _Ways:
        """All children of all live beams (-1 marks a dead one)."""
        trie: Trie = self.model.trie
        live = np.flatnonzero(nodes_UW.ravel() >= 0)
        children = trie.children(nodes_UW.ravel()[live])
        row, node = live[children.parent], children.node
        fine = np.ones(len(node), dtype=bool)
        if self.allowed is not None:
            fine = self.allowed.open(row // nodes_UW.shape[1], node)
        return _Ways(row, children.token, node, trie.is_leaf(node), fine)

    def _scored(self, depth: int, ways: _Ways, scores_UW: Tensor, state: Any, rows_UWD: Tensor) -> Edges:
        """The ways with the scores of their hypotheses, without those that the filter blocks."""
        beams, over = scores_UW.shape[1], self.model.over
        score = scores_UW.reshape(-1)[torch.as_tensor(ways.row)]
        score = score + edge_log_probabilities(self.model.network, state, rows_UWD, ways.row, ways.token, over)
        edges = Edges(ways.row // beams, ways.row % beams, ways.token, ways.node, ways.leaf, score)
        if self.watch is not None:
            self.watch.weighed(depth, edges, ways.open)
        if over == "children":
            self.finished.see(edges)
        return edges.select(ways.open)

    def _last_step(self, depth: int, state: Any, best: _Best, ways: _Ways) -> None:
        """The last step, where every hypothesis needs one more token. The best are scored first, because the k-th score
        that they reach rules out most of the others without a model call; the result is the same."""
        finished, (users, beams) = self.finished, best.nodes.shape
        wave = max(finished.k + finished.k // 2 + 1, -(-_WAVE_ROWS // users))
        alive_UW, beam = torch.as_tensor(best.nodes >= 0), ways.row % beams
        done = 0
        while True:
            # A score equal to the bound may still win by trie order.
            open_UW = alive_UW & (best.scores >= finished.bound())
            # Scores fall along a row, so open hypotheses come first.
            stop = min(done + wave, int(open_UW.sum(1).max()))
            if stop <= done:
                return
            columns = slice(done, stop)
            stepped, rows = self.model.network.step(state, best.parents[:, columns], best.tokens[:, columns])
            asked = ways.select((beam >= done) & (beam < stop) & open_UW.numpy().ravel()[ways.row])
            asked = replace(asked, row=asked.row // beams * (stop - done) + asked.row % beams - done)
            edges = self._scored(depth, asked, best.scores[:, columns], stepped, rows)
            finished.add(edges)
            done = stop


def _columns(scores_UC: Tensor, chosen_C: np.ndarray) -> Tensor:
    return scores_UC if chosen_C.all() else scores_UC.index_select(1, torch.as_tensor(np.flatnonzero(chosen_C)))


def _by_user(edges: Edges, users: int, *columns: np.ndarray) -> tuple[Tensor, list[Tensor]]:
    """Edges as rows by user: scores filled with -inf, columns with -1."""
    counts = np.bincount(edges.user, minlength=users)
    place = Ragged.ranges(0, counts).values
    width = max(int(counts.max()) if users else 0, 1)
    index = torch.as_tensor(edges.user * width + place)
    scores = torch.full((users * width,), -torch.inf).index_copy_(0, index, edges.score)
    filled = []
    for values in columns:
        out = torch.full((users * width,), -1, dtype=torch.int64)
        filled.append(out.index_copy_(0, index, torch.as_tensor(values)).view(users, width))
    return scores.view(users, width), filled


def _top(scores_UE: Tensor, nodes_UE: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of every row and their columns, best first; equal scores by node (topk leaves their order open)."""
    # One more than needed: if it equals the last, a tie crosses the cut.
    values, order = scores_UE.topk(min(k + 1, scores_UE.shape[1]), dim=1)
    order_UK, last_U1 = order[:, :k], values[:, k - 1 : k]
    cut = ((values[:, k:] == last_U1) & (last_U1 > -torch.inf)).any(1)
    if cut.any():
        order_UK[cut] = _cut_ties(scores_UE[cut], nodes_UE[cut], last_U1[cut], k)
    order_UK = order_UK.gather(1, nodes_UE.gather(1, order_UK).sort(dim=1).indices)
    values_UK, places = scores_UE.gather(1, order_UK).sort(dim=1, descending=True, stable=True)
    return values_UK, order_UK.gather(1, places)


def _cut_ties(scores_UE: Tensor, nodes_UE: Tensor, last_U1: Tensor, k: int) -> Tensor:
    """Columns of the k best where too many share the last score: the smallest nodes among those win."""
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
        self.seen = torch.zeros(users)

    def see(self, edges: Edges) -> None:
        """Add the probability of the scored items, whether or not the filter allows them."""
        leaves = np.flatnonzero(edges.leaf)
        self.seen.index_add_(0, torch.as_tensor(edges.user[leaves]), edges.score[torch.as_tensor(leaves)].exp())

    def begin(self, scores_UF: Tensor, nodes_F: Tensor) -> None:
        """The first finished ones: scores of the same leaves for all users, minus infinity where the filter blocks."""
        if not len(nodes_F):
            return
        scores, order = _top(scores_UF, nodes_F.expand(len(scores_UF), -1), self.k)
        self.scores[:, : scores.shape[1]] = scores
        self.nodes[:, : scores.shape[1]] = nodes_F[order].masked_fill_(scores == -torch.inf, -1)

    def add(self, edges: Edges) -> None:
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


def _best(edges: Edges, users: int, width: int, bound_U1: Tensor) -> _Best | None:
    """The `width` best unfinished hypotheses that can still win; None if there are none."""
    if not len(edges.user):
        return None
    scores, (beam, token, node) = _by_user(edges, users, edges.beam, edges.token, edges.node)
    return _survivors(scores, beam, token, node, width, bound_U1)


def _survivors(
    scores_UE: Tensor, beam_UE: Tensor, token_UE: Tensor, node_UE: Tensor, width: int, bound_U1: Tensor
) -> _Best | None:
    """The same for hypotheses in rows by user; a score of minus infinity marks what is none."""
    scores, order = _top(scores_UE, node_UE, min(width, scores_UE.shape[1]))
    # A hypothesis whose score stays the same may still tie with the k-th and win by trie order.
    alive = (scores >= bound_U1) & (scores > -torch.inf)
    most = int(alive.sum(1).max())
    if most == 0:
        return None
    # Survivors come first, because scores fall along a row: drop the remaining columns.
    order, alive, scores = order[:, :most], alive[:, :most], scores[:, :most]
    nodes = node_UE.gather(1, order).masked_fill_(~alive, -1)
    parents = beam_UE.gather(1, order).masked_fill_(~alive, 0)
    tokens = token_UE.gather(1, order).masked_fill_(~alive, 0)
    return _Best(nodes.numpy(), scores, parents, tokens)
