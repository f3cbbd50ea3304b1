"""A model with its ids and their trie: what a ranker reads histories and scores items with. Knows numbers, not ids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from capsid.decode.likelihood import edge_log_probabilities
from capsid.decode.protocol import Decodable
from capsid.ids.reading import TokenBatch
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.trie import ROOT, Over, Trie
from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class Reader:
    """`history` is how many items of a history are read; `over` is what a token's probability is normalised over."""

    model: Decodable
    ids: SemanticIds
    trie: Trie
    history: int
    over: Over = "vocabulary"

    def read(self, histories: Ragged) -> TokenBatch:
        """What the model reads of histories (rows of item numbers)."""
        return self.ids.read(histories, last=self.history)

    @torch.inference_mode()
    def root_scores(self, histories: Ragged) -> np.ndarray:
        """Log-probabilities of the root's children after every history, in trie order. Shape: (U, children)."""
        state, rows_U1D = self.model.start(self.read(histories))
        children = self.trie.children(np.full(len(histories), ROOT))
        scores = edge_log_probabilities(self.model, state, rows_U1D, children.parent, children.token, self.over)
        return scores.numpy().reshape(len(histories), -1)
