"""Beam search fused with item vectors: ids find buckets, vectors order the items of all of them.

An item's score is the product of two softmaxes: over the finished beams of a user by their log-probability, and over
all items that these beams hold by the cosine of the item's vector and the vector that is expected after its id
(BeamFusion of COBRA, Yang et al. 2025, arXiv 2503.02453, in the form of CapsID, arXiv 2605.05096, appendix on
constrained decoding; temperatures are not published). Knows protocols, not networks. Shapes: U users, F leaves,
T tokens of an id, E items in leaves, C width of vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from capsid.blocks.pairs import pair_products
from capsid.blocks.segments import segment_logsumexp
from capsid.decode.beam import BeamSearch
from capsid.decode.filters import Filter
from capsid.decode.protocol import Dense
from capsid.decode.ranked import RankedItems, RankedLeaves, best_items, leaf_slots
from capsid.decode.reader import Reader
from capsid.errors import ConfigError
from capsid.ids.layout import PAD
from capsid.ids.trie import Trie
from capsid.ragged import Ragged
from capsid.settings import check_settings, setting


@dataclass(kw_only=True, frozen=True)
class BeamFusion:
    """How a recipe with item vectors decodes."""

    kind: ClassVar[str] = "fusion"
    width: int = setting(50, "Hypotheses kept per user and step, and ids whose items are compared.", least=1)
    beam_temperature: float = setting(
        1.0, "Log-probabilities of ids are multiplied by this before the softmax.", least=0
    )
    dense_temperature: float = setting(16.0, "Cosines are multiplied by this before the softmax.", least=0)

    def __post_init__(self) -> None:
        check_settings(self)

    @torch.inference_mode()
    def rank(self, reader: Reader, histories: Ragged, k: int, allowed: Filter | None = None) -> RankedItems:
        """The k best items after every history; equal scores in the order of plain beam search."""
        if k < 1:
            raise ConfigError(f"k must be at least 1, got {k}")
        if reader.dense is None:
            raise ConfigError("decoder=fusion needs item vectors", hint="add the term 'dense', or set decoder=beam")
        wanted = min(max(self.width, k), len(reader.trie))
        started = reader.start(histories)
        leaves = BeamSearch(width=self.width).leaves(reader, histories, wanted, allowed, started=started)
        slots = leaf_slots(reader.trie, leaves.leaves_UF, allowed)
        expected_UFC = reader.dense.expected(rows_after(reader, started, leaves.leaves_UF))
        scores_E = self._scores(reader.trie, reader.dense, leaves, slots, expected_UFC)
        # Items are in the order of plain beam search, which decides ties.
        users, width = leaves.leaves_UF.shape
        items_E = reader.trie.items[slots.values]
        return best_items(users, slots.row_numbers // width, items_E, scores_E, k, leaves.seen_U)

    def _scores(
        self, trie: Trie, dense: Dense, leaves: RankedLeaves, slots: Ragged, expected_UFC: Tensor
    ) -> np.ndarray:
        """Log of the product of both softmaxes, for every item of every leaf, in order."""
        users, width = leaves.leaves_UF.shape
        there_UF = torch.as_tensor(leaves.leaves_UF >= 0)
        beams_UF = torch.where(there_UF, torch.as_tensor(leaves.scores_UF), 0.0) * self.beam_temperature
        beams_UF = beams_UF.masked_fill(~there_UF, -torch.inf)
        # A user without leaves has no items either, so that row is never read.
        beams_UF = beams_UF - beams_UF.logsumexp(1, keepdim=True)
        cell_E = torch.as_tensor(slots.row_numbers)
        item_E = torch.as_tensor(trie.items[slots.values].astype(np.int64))
        cosines_E = pair_products(expected_UFC.flatten(0, 1), dense.vectors_NC, cell_E, item_E)
        dense_E, user_E = cosines_E * self.dense_temperature, cell_E // width
        totals_U = segment_logsumexp(dense_E, user_E, users)
        scores_E: np.ndarray = (beams_UF.flatten()[cell_E] + dense_E - totals_U[user_E]).numpy()
        return scores_E


def rows_after(reader: Reader, started: tuple[Any, Tensor], leaves_UF: np.ndarray) -> Tensor:
    """The model's rows after the last token of every leaf's id; anything where there is no leaf. Shape: (U, F, D)."""
    trie, (users, width) = reader.trie, leaves_UF.shape
    first_UF = trie.items[trie.low[np.maximum(leaves_UF, 0)]]
    ids = reader.ids.prefix_free.take(first_UF.ravel())
    tokens_UFT = torch.as_tensor(ids.dense(PAD).astype(np.int64)).view(users, width, -1)
    lengths_UF = torch.as_tensor(ids.lengths).view(users, width)
    state, rows_U1D = started
    out_UFD = rows_U1D.new_zeros(users, width, rows_U1D.shape[-1])
    parents_UF = torch.zeros(users, width, dtype=torch.int64)
    for depth in range(tokens_UFT.shape[2]):
        state, rows_UFD = reader.model.step(state, parents_UF, tokens_UFT[..., depth])
        out_UFD = torch.where((lengths_UF == depth + 1)[..., None], rows_UFD, out_UFD)
        parents_UF = torch.arange(width).expand(users, width)
    return out_UFD
