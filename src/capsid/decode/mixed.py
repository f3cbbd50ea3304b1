"""Two ids per item, one probability: the mixture of both ids' probabilities ranks the items that either search finds.

Each id has its own trie, so the probabilities of all items sum to 1 under each of them and under the mixture

    p(i) = w p_A(i) + (1 - w) p_B(i).

Both tries are searched; an item that only one search has found is scored exactly under its other id. Items that share
an id share its probability equally. Knows protocols, not networks. Shapes: U users, F leaves, T tokens of an id, E
candidates (a user and an item each).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from capsid.decode.beam import BeamSearch
from capsid.decode.filters import Filter
from capsid.decode.likelihood import edge_log_probabilities
from capsid.decode.protocol import SeesOtherIds
from capsid.decode.ranked import RankedItems, RankedLeaves, best_items, leaf_slots
from capsid.decode.reader import Reader
from capsid.decode.watch import RootScores
from capsid.errors import ConfigError
from capsid.ids.layout import PAD
from capsid.ids.trie import ROOT
from capsid.ragged import Ragged
from capsid.settings import check_settings, setting


@dataclass(kw_only=True, frozen=True)
class Mixed:
    """How a recipe with two ids per item decodes."""

    kind: ClassVar[str] = "mixed"
    width: int = setting(50, "Hypotheses kept per user, step and id, and items taken from each search.", least=1)
    weight: float = setting(0.5, "Weight of the first id's probabilities; the second id has the rest.", least=0, most=1)

    def __post_init__(self) -> None:
        check_settings(self)

    def rank(self, reader: Reader, histories: Ragged, k: int, allowed: Filter | None = None) -> RankedItems:
        """The k best items after every history; equal scores in the first trie's order."""
        return self.rank_with_roots(reader, histories, k, allowed, RootScores())

    @torch.inference_mode()
    def rank_with_roots(
        self, reader: Reader, histories: Ragged, k: int, allowed: Filter | None, roots: RootScores
    ) -> RankedItems:
        """See `capsid.decode.ranked.KeepsRoots`. An id without weight is not searched, and has no root scores."""
        if k < 1:
            raise ConfigError(f"k must be at least 1, got {k}")
        if reader.over != "children":
            raise ConfigError(f"decoder=mixed needs over=children, got over={reader.over}", hint="set over=children")
        wanted, second = min(max(self.width, k), len(reader.trie)), reader.of_second
        search, sides = BeamSearch(width=self.width), []
        opened = _started(reader, second, histories)
        for (side, started), weight, own in zip(opened, (self.weight, 1 - self.weight), (roots, RootScores())):
            if weight:
                permitted = None if allowed is None else allowed.over(side.trie)
                leaves = search.leaves(side, histories, wanted, permitted, own, started)
                sides.append(_Side(side, weight, permitted, started, own, leaves))
        user_E, item_E = np.divmod(np.unique(np.concatenate([side.found() for side in sides])), len(reader.trie))
        # For each user in the order of equal scores: by leaf of the first trie, then by slot.
        order_E = np.lexsort((reader.trie.slots[item_E], reader.trie.leaf_of(item_E), user_E))
        user_E, item_E = user_E[order_E], item_E[order_E]
        scores_E = np.logaddexp.reduce([side.scores(user_E, item_E) for side in sides])
        seen_U = np.sum([side.seen() for side in sides], axis=0)
        return best_items(len(histories), user_E, item_E, scores_E, k, seen_U)


def _started(reader: Reader, second: Reader, histories: Ragged) -> list[tuple[Reader, tuple[Any, Tensor]]]:
    """Both readers with the model's state and rows after histories, which are read once."""
    model = reader.model
    if not isinstance(model, SeesOtherIds):
        raise ConfigError("decoder=mixed needs a generator that predicts two ids", hint="set generator=timeline")
    batch = reader.read(histories)
    state, rows_U1D = model.start(batch)
    other = model.seen_as(state, batch.seen_as(second.ids.prefix_free))
    return [(reader, (state, rows_U1D)), (second, (other, rows_U1D))]


@dataclass(frozen=True, eq=False)
class _Side:
    """One id: its reader, its weight, and what the search of its trie has found."""

    reader: Reader
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
        trie, width = self.reader.trie, self.leaves.leaves_UF.shape[1]
        slots = leaf_slots(trie, self.leaves.leaves_UF, self.allowed)
        return (slots.row_numbers // width) * len(trie) + trie.items[slots.values]

    def scores(self, user_E: np.ndarray, item_E: np.ndarray) -> np.ndarray:
        """Log of the weighted probability of every candidate. Candidates are ordered by user."""
        trie, leaves_UF = self.reader.trie, self.leaves.leaves_UF
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
        trie, (state, rows_U1D) = self.reader.trie, self.started
        ids = self.reader.ids.prefix_free.take(trie.items[trie.low[leaf_E]])
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
            state, rows_UWD = self.reader.model.step(state, parents_UW, torch.as_tensor(tokens_R).view(users, width))
            parents_UW = torch.arange(width).expand(users, width)
            going_E = np.flatnonzero(lengths_E > depth)
            edges = trie.children(node_E[going_E])
            row = row_E[going_E][edges.parent]
            scored = edge_log_probabilities(self.reader.model, state, rows_UWD, row, edges.token, self.reader.over)
            # Each node has one child with the id's own token, so these are in the order of `going_E`.
            own = edges.token == tokens_ET[going_E, depth][edges.parent]
            scores_E[going_E] += scored.numpy()[own]
            node_E[going_E] = edges.node[own]
        return scores_E
