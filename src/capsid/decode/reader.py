"""A model with its ids and their trie: rankers read histories and score items with it. Knows item numbers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsid.decode.likelihood import root_log_probabilities
from capsid.decode.protocol import Decodable, Dense
from capsid.errors import ConfigError
from capsid.ids.histories import ReadableIds
from capsid.ids.reading import TokenBatch
from capsid.ids.trie import ROOT, Children, Over, Trie
from capsid.ragged import Ragged

# If fewer tokens than one of this many can begin an id, only those are scored.
FEW_OF = 8


@dataclass(frozen=True, eq=False)
class Reader:
    """`history` is how many items of a history are read; `over` is what a token's probability is normalised over.

    `dense` are vectors beside the ids, where the method has them; `second` is the trie of the items' second ids, where
    they have two. A reader of second ids reads histories by the ids that they are second to (`read_by`).
    """

    model: Decodable
    ids: ReadableIds
    trie: Trie
    history: int
    over: Over = "vocabulary"
    dense: Dense | None = None
    second: Trie | None = None
    read_by: ReadableIds | None = None

    @property
    def of_second(self) -> Reader:
        """A reader of the same model that searches the second ids; an error if there are none."""
        ids = self.ids.second
        if ids is None or self.second is None:
            raise ConfigError("the items have one id each", hint="set second=second-id, or decoder=beam")
        return Reader(self.model, ids, self.second, self.history, self.over, read_by=self.ids)

    def read(self, histories: Ragged, *, variant: int = 0) -> TokenBatch:
        """Histories (rows of item numbers) as network input; `variant` as in `capsid.ids.reading.Reading`."""
        if self.read_by is None:
            return self.ids.read(histories, last=self.history, variant=variant)
        return self.read_by.read(histories, last=self.history, variant=variant).seen_as(self.ids.prefix_free)

    def start(self, histories: Ragged, *, variant: int = 0) -> tuple[Any, Tensor]:
        """The model's state after histories, and the rows that predict the first token."""
        batch = self.read(histories, variant=variant)
        return self.model.start(batch) if self.dense is None else self.model.start(batch, self.dense.inputs(batch))

    @property
    def root(self) -> Children:
        """The root's children, in trie order."""
        return self.trie.children(np.array([ROOT]))

    def first_scores(self, state: Any, rows_U1D: Tensor) -> Tensor:
        """Log-probabilities of the root's children, from what `start` gave, in trie order. Shape: (U, children)."""
        token_C = self.root.token
        many = len(token_C) * FEW_OF >= self.ids.layout.vocabulary
        return root_log_probabilities(self.model, state, rows_U1D, token_C, self.over, all_tokens=many)

    @torch.inference_mode()
    def root_scores(self, histories: Ragged) -> np.ndarray:
        """Log-probabilities of the root's children after every history, in trie order. Shape: (U, children)."""
        scores: np.ndarray = self.first_scores(*self.start(histories)).numpy()
        return scores
