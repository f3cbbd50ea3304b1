"""Beam search fused with item vectors: beams find buckets of items, and vectors tell the items of a bucket apart.

An item's score is the product of two softmaxes: over the finished beams of a user by their log-probability, and over
items by the cosine of the item's vector and the vector that is expected after its id. The second one is over the items
of the same id, so that the product is the probability of an id times that of an item given its id (COBRA, Yang et al.
2025, arXiv 2503.02453, section on probabilistic decomposition), or over all items that were found (BeamFusion of COBRA,
in the form of CapsID, arXiv 2605.05096, appendix on constrained decoding). The latter compares cosines with vectors
that are predicted after different ids: they say how well an id determines its item, not how well the item fits the
user. Knows protocols, not networks. Shapes: U users, F leaves, T tokens of an id, E items in leaves, C width of
vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from capsid.base.blocks.cross_entropy import pair_products, segment_logsumexp
from capsid.decode.beam import BeamSearch
from capsid.decode.filters import Filter
from capsid.decode.model import FittedModel
from capsid.decode.ranked import RankedItems, RankedLeaves, Searches, best_items, leaf_slots
from capsid.decode.watch import Watch
from capsid.errors import ConfigError
from capsid.ids.layout import PAD
from capsid.ragged import Ragged
from capsid.settings import setting


@dataclass(kw_only=True, frozen=True)
class BeamFusion(Searches):
    """How a recipe with item vectors decodes."""

    kind: ClassVar[str] = "fusion"
    beam_temperature: float = setting(1.0, "Log-probabilities of ids times this enter the softmax.", least=0)
    dense_temperature: float = setting(16.0, "Cosines are multiplied by this before the softmax.", least=0)
    among: str = setting(
        "found", "Whose cosines are compared: all found items, or those of the same id.", choices=("found", "id")
    )

    def rank(self, model: FittedModel, histories: Ragged, k: int, allowed: Filter | None = None) -> RankedItems:
        """The k best items after every history; equal scores in the order of plain beam search."""
        return self.fuse(model, histories, k, allowed).best(k)

    @torch.inference_mode()
    def fuse(
        self, model: FittedModel, histories: Ragged, k: int, allowed: Filter | None = None, watch: Watch | None = None
    ) -> Fused:
        """All items of the ids that the search finds, with both parts of their scores."""
        if model.dense is None:
            raise ConfigError("decoder=fusion needs item vectors", hint="add the term 'dense', or set decoder=beam")
        wanted, started = self.wanted(model, k), model.start(histories)
        leaves = BeamSearch(width=self.width).leaves(model, histories, wanted, allowed, watch, started=started)
        slots = leaf_slots(model.trie, leaves.leaves_UF, None)
        expected_UFC = model.dense.expected(rows_after(model, started, leaves.leaves_UF))
        cell_E, item_E = _cells(model, slots)
        cosine_E = pair_products(expected_UFC.flatten(0, 1), model.dense.vectors_NC, cell_E, item_E)
        user_E = cell_E // leaves.leaves_UF.shape[1]
        # Over all items of an id, also blocked ones: a filter must not change the order of what it leaves.
        dense_E = self._dense(cosine_E, cell_E, user_E)
        beam_E = self._beams(leaves).flatten()[cell_E]
        arrays = [t.numpy() for t in (user_E, item_E, beam_E + dense_E, beam_E, dense_E, cosine_E)]
        if allowed is not None:
            permitted = allowed.permits(arrays[0], slots.values)
            arrays = [array[permitted] for array in arrays]
        return Fused(leaves, *arrays)

    def _dense(self, cosine_E: Tensor, cell_E: Tensor, user_E: Tensor) -> Tensor:
        """Log of the softmax of the cosines, over the items of each id or of each user."""
        scaled_E = cosine_E * self.dense_temperature
        group_E = cell_E if self.among == "id" else user_E
        groups = int(group_E.max()) + 1 if len(group_E) else 0
        return scaled_E - segment_logsumexp(scaled_E, group_E, groups)[group_E]

    def _beams(self, leaves: RankedLeaves) -> Tensor:
        """Log of the softmax over the ids of every user. Shape: (U, F)."""
        there_UF = torch.as_tensor(leaves.leaves_UF >= 0)
        beams_UF = torch.where(there_UF, torch.as_tensor(leaves.scores_UF), 0.0) * self.beam_temperature
        beams_UF = beams_UF.masked_fill(~there_UF, -torch.inf)
        # A user without leaves has no items either, so that row is never read.
        return beams_UF - beams_UF.logsumexp(1, keepdim=True)


@dataclass(frozen=True, eq=False)
class Fused:
    """The ids that were found, and all their items in the order of plain beam search, which decides ties. An item's
    score is the sum of `beam_E` and `dense_E`, the logs of both softmaxes. Shape of every array: (E,)."""

    leaves: RankedLeaves
    user_E: np.ndarray
    item_E: np.ndarray
    score_E: np.ndarray
    beam_E: np.ndarray
    dense_E: np.ndarray
    cosine_E: np.ndarray

    def best(self, k: int) -> RankedItems:
        """The k best items of every user."""
        users = len(self.leaves.leaves_UF)
        return best_items(users, self.user_E, self.item_E, self.score_E, k, self.leaves.seen_U)


@torch.inference_mode()
def dense_parts(fusion: BeamFusion, model: FittedModel, histories: Ragged, items_R: np.ndarray) -> np.ndarray:
    """What vectors add to the scores of items: within ids the log of the softmax, else cosines before it, whose
    normaliser depends on what else is found. Shape: (histories, items)."""
    assert model.dense is not None
    leaves_UR = np.tile(model.trie.leaf_of(items_R), (len(histories), 1))
    expected_URC = model.dense.expected(rows_after(model, model.start(histories), leaves_UR))
    own_UR = (expected_URC * model.dense.vectors_NC[torch.as_tensor(items_R)]).sum(-1) * fusion.dense_temperature
    if fusion.among == "id":
        cell_E, item_E = _cells(model, leaf_slots(model.trie, leaves_UR, None))
        cosine_E = pair_products(expected_URC.flatten(0, 1), model.dense.vectors_NC, cell_E, item_E)
        own_UR = own_UR - segment_logsumexp(cosine_E * fusion.dense_temperature, cell_E, leaves_UR.size).view_as(own_UR)
    return own_UR.numpy()


def _cells(model: FittedModel, slots: Ragged) -> tuple[Tensor, Tensor]:
    """For each item of each leaf the number of the leaf, user by user, and the item."""
    items_E = model.trie.items[slots.values].astype(np.int64)
    return torch.as_tensor(slots.row_numbers), torch.as_tensor(items_E)


def rows_after(model: FittedModel, started: tuple[Any, Tensor], leaves_UF: np.ndarray) -> Tensor:
    """The model's rows after the last token of every leaf's id; anything where there is no leaf. Shape: (U, F, D)."""
    trie, (users, width) = model.trie, leaves_UF.shape
    first_UF = trie.items[trie.low[np.maximum(leaves_UF, 0)]]
    ids = model.ids.prefix_free.take(first_UF.ravel())
    tokens_UFT = torch.as_tensor(ids.dense(PAD).astype(np.int64)).view(users, width, -1)
    lengths_UF = torch.as_tensor(ids.lengths).view(users, width)
    state, rows_U1D = started
    out_UFD = rows_U1D.new_zeros(users, width, rows_U1D.shape[-1])
    parents_UF = torch.zeros(users, width, dtype=torch.int64)
    for depth in range(tokens_UFT.shape[2]):
        state, rows_UFD = model.network.step(state, parents_UF, tokens_UFT[..., depth])
        out_UFD = torch.where((lengths_UF == depth + 1)[..., None], rows_UFD, out_UFD)
        parents_UF = torch.arange(width).expand(users, width)
    return out_UFD
