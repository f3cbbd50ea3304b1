"""Rankers of several searches: several readings of a history, and several ids per item.

An ensemble fuses the lists of several readings by rank: an item's score is the sum of 1 / log2(rank + 1) over the
lists that hold it (ActionPiece, Hou et al. 2025, arXiv 2502.13581, section 3.3). If histories can be read in only one
way, one list is made.

With several ids per item, each id system has its own trie, so the probabilities of all items sum to 1 under each of
them and under the mixture p(i) = sum_s w_s p_s(i), with weights w_s that sum to 1. All tries are searched; an item
that one search has not found is scored exactly under that id. Items that share an id share its probability equally.
Knows protocols, not networks. Shapes: U users, F leaves, T tokens of an id, E leaves of all lists, or candidates (a
user and an item each).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from capsid.decode.beam import BeamSearch
from capsid.decode.filters import Filter
from capsid.decode.model import FittedModel, edge_log_probabilities
from capsid.decode.ranked import RankedItems, RankedLeaves, RanksLeaves, Searches, best_items, leaf_slots
from capsid.decode.watch import RootScores, Watch
from capsid.errors import ConfigError
from capsid.ids.layout import PAD
from capsid.ids.trie import ROOT
from capsid.ragged import Ragged
from capsid.settings import setting


@dataclass(kw_only=True, frozen=True)
class Ensemble(Searches, RanksLeaves):
    """How a recipe decodes that reads a history in several ways."""

    kind: ClassVar[str] = "ensemble"
    times: int = setting(5, "How many readings of a history are searched.", least=1, most=100)

    @property
    def quick(self) -> Ensemble:
        """One reading: what validations during training use."""
        return replace(self, times=1)

    def leaves(
        self, model: FittedModel, histories: Ragged, k: int, allowed: Filter | None = None, watch: Watch | None = None
    ) -> RankedLeaves:
        """The k best leaves after every history. The watch sees the search of the first reading."""
        search = BeamSearch(width=self.width)
        # Lists of one reading need no more leaves than are asked for, because fusing keeps their order.
        times = self.times if model.item_ids.reading.varies else 1
        most = k if times == 1 else min(max(self.width, k), len(model.trie))
        lists = []
        for number in range(times):
            # Variant 0 is not random.
            started: tuple[Any, Tensor] = model.start(histories, variant=number + 1)
            seen = watch if number == 0 else None
            lists.append(search.leaves(model, histories, most, allowed, seen, started))
        return fused(lists, k)


def fused(lists: list[RankedLeaves], k: int) -> RankedLeaves:
    """The k best leaves of all lists by the sum of 1 / log2(rank + 1), ranks from 1."""
    users, width = lists[0].leaves_UF.shape
    leaf_UE = np.concatenate([found.leaves_UF for found in lists], axis=1)
    user_E, place_E = np.nonzero(leaf_UE >= 0)
    leaf_E = leaf_UE[user_E, place_E]
    # Nodes are numbered from 0, so user * stride + leaf is a key by user, then in trie order.
    stride = int(leaf_E.max(initial=0)) + 1
    key_C, own_E = np.unique(user_E * stride + leaf_E, return_inverse=True)
    score_C = np.bincount(own_E, 1 / np.log2(place_E % width + 2), minlength=len(key_C))
    user_C, leaf_C = np.divmod(key_C, stride)
    order_C = np.lexsort([leaf_C, -score_C, user_C])
    rank_C = Ragged.ranges(0, np.bincount(user_C, minlength=users)).values
    best = order_C[rank_C < k]
    leaves_UK = np.full((users, k), -1, dtype=np.int64)
    scores_UK = np.full((users, k), -np.inf, dtype=np.float32)
    leaves_UK[user_C[best], rank_C[rank_C < k]] = leaf_C[best]
    scores_UK[user_C[best], rank_C[rank_C < k]] = score_C[best]
    return RankedLeaves(leaves_UK, scores_UK, sum(found.steps for found in lists))


@dataclass(kw_only=True, frozen=True)
class Mixed(Searches):
    """How a recipe with several ids per item decodes."""

    kind: ClassVar[str] = "mixed"
    weights: tuple[float, ...] = setting((), "Weights of the ids' probabilities; empty: all the same.", least=0, most=1)

    def check_together(self) -> None:
        if self.weights and abs(sum(self.weights) - 1) > 1e-6:
            raise ConfigError(
                f"decoder.weights must sum to 1, got {sum(self.weights):g}", hint="leave it empty for equal weights"
            )

    def shares(self, systems: int) -> tuple[float, ...]:
        """The weight of every id system."""
        if self.weights and len(self.weights) != systems:
            raise ConfigError(
                f"decoder.weights must have one weight for each id of an item, {systems}, got {len(self.weights)}",
                hint="leave it empty for equal weights",
            )
        return self.weights or (1 / systems,) * systems

    def rank(self, model: FittedModel, histories: Ragged, k: int, allowed: Filter | None = None) -> RankedItems:
        """The k best items after every history; equal scores in the first trie's order."""
        return self.rank_with_roots(model, histories, k, allowed, RootScores())

    @torch.inference_mode()
    def rank_with_roots(
        self, model: FittedModel, histories: Ragged, k: int, allowed: Filter | None, roots: RootScores
    ) -> RankedItems:
        """See `capsid.decode.ranked.KeepsRoots`. An id without weight is not searched, and has no root scores."""
        if model.over != "children":
            raise ConfigError(f"decoder=mixed needs over=children, got over={model.over}", hint="set over=children")
        wanted, shares = self.wanted(model, k), self.shares(len(model.tries))
        search, sides = BeamSearch(width=self.width), []
        for (side, started), weight in zip(_started(model, histories), shares):
            if weight:
                permitted = None if allowed is None else allowed.over(side.trie)
                own = roots if side.system == 0 else RootScores()
                leaves = search.leaves(side, histories, wanted, permitted, own, started)
                sides.append(_Side(side, weight, permitted, started, own, leaves))
        user_E, item_E = np.divmod(np.unique(np.concatenate([side.found() for side in sides])), len(model.trie))
        # For each user in the order of equal scores: by leaf of the first trie, then by slot.
        order_E = np.lexsort((model.trie.slots[item_E], model.trie.leaf_of(item_E), user_E))
        user_E, item_E = user_E[order_E], item_E[order_E]
        scores_E = np.logaddexp.reduce([side.scores(user_E, item_E) for side in sides])
        seen_U = np.sum([side.seen() for side in sides], axis=0)
        return best_items(len(histories), user_E, item_E, scores_E, k, seen_U)


def _started(model: FittedModel, histories: Ragged) -> list[tuple[FittedModel, tuple[Any, Tensor]]]:
    """The model on every id system, with the network's state and rows after histories, which are read once."""
    batch = model.read(histories)
    state, rows_U1D = model.network.start(batch)
    sides = map(model.on, range(len(model.tries)))
    return [(side, (side.in_system(state, batch), rows_U1D)) for side in sides]


@dataclass(frozen=True, eq=False)
class _Side:
    """One id: its model, its weight, and what the search of its trie has found."""

    model: FittedModel
    weight: float
    allowed: Filter | None
    started: tuple[Any, Tensor]
    roots: RootScores
    leaves: RankedLeaves

    def seen(self) -> np.ndarray:
        """The probability that the search has scored, times the weight. Shape: (U,)."""
        assert self.leaves.seen_U is not None
        return self.weight * self.leaves.seen_U

    def found(self) -> np.ndarray:
        """The items of the leaves, as keys user * items + item."""
        trie, width = self.model.trie, self.leaves.leaves_UF.shape[1]
        slots = leaf_slots(trie, self.leaves.leaves_UF, self.allowed)
        return (slots.row_numbers // width) * len(trie) + trie.items[slots.values]

    def scores(self, user_E: np.ndarray, item_E: np.ndarray) -> np.ndarray:
        """Log of the weighted probability of every candidate. Candidates are ordered by user."""
        trie, leaves_UF = self.model.trie, self.leaves.leaves_UF
        leaf_E = trie.leaf_of(item_E)
        # Keys user * stride + leaf; -1, where a search found no more leaves, must not become another user's leaf.
        stride = trie.nodes + 1
        known, order = np.unique(np.arange(len(leaves_UF))[:, None] * stride + leaves_UF + 1, return_index=True)
        key_E = user_E * stride + leaf_E + 1
        place_E = np.minimum(np.searchsorted(known, key_E), len(known) - 1)
        scores_E = self.leaves.scores_UF.ravel()[order][place_E].astype(np.float64)
        new_E = np.flatnonzero(known[place_E] != key_E)
        scores_E[new_E] = self._exact(user_E[new_E], leaf_E[new_E])
        return scores_E + np.log(self.weight) - np.log(trie.high[leaf_E] - trie.low[leaf_E])

    def _exact(self, user_E: np.ndarray, leaf_E: np.ndarray) -> np.ndarray:
        """Log-probabilities of leaves after the histories of their users, ordered by user."""
        trie, (state, rows_U1D) = self.model.trie, self.started
        ids = self.model.ids.prefix_free.take(trie.items[trie.low[leaf_E]])
        tokens_ET, lengths_E = ids.dense(PAD).astype(np.int64), ids.lengths
        if not len(leaf_E):
            return np.zeros(0)
        assert self.roots.scores_UC is not None
        node_E = trie.walk(np.full(len(leaf_E), ROOT), tokens_ET[:, 0])
        scores_E = self.roots.scores_UC[user_E, node_E - trie.first_child[ROOT]].astype(np.float64)
        # Ids of one token are scored now; the others become beams of their users, `row_E` is the number of each.
        deep_E = np.flatnonzero(lengths_E > 1)
        beams = Ragged.grouped(deep_E, user_E[deep_E], len(rows_U1D))
        users, width = len(beams), int(beams.lengths.max())
        row_E = np.full(len(leaf_E), -1)
        row_E[beams.values] = beams.row_numbers * width + beams.positions
        parents_UW = torch.zeros(users, width, dtype=torch.int64)
        for depth in range(1, tokens_ET.shape[1]):
            tokens_R = np.full(users * width, PAD)
            tokens_R[row_E[deep_E]] = tokens_ET[deep_E, depth - 1]
            state, rows_UWD = self.model.network.step(state, parents_UW, torch.as_tensor(tokens_R).view(users, width))
            parents_UW = torch.arange(width).expand(users, width)
            going_E = np.flatnonzero(lengths_E > depth)
            edges = trie.children(node_E[going_E])
            row = row_E[going_E][edges.parent]
            scored = edge_log_probabilities(self.model.network, state, rows_UWD, row, edges.token, self.model.over)
            # Each node has one child with the id's own token, so these are in the order of `going_E`.
            own = edges.token == tokens_ET[going_E, depth][edges.parent]
            scores_E[going_E] += scored.numpy()[own]
            node_E[going_E] = edges.node[own]
        return scores_E
