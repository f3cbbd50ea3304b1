"""Generators without a network: every item of a history speaks for the items on its list, the latest most.

The lists are computed at once from training histories or from item vectors (`capsid.generate.item_weights`,
`capsid.encode.nearest`). Ids have one token, and scores are of one step. Equal scores are told apart by popularity.
Shapes: U users, V tokens, E entries of lists, N items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from capsid.encode.nearest import neighbours_of
from capsid.errors import ConfigError
from capsid.generate.generator import PopularityGenerator
from capsid.generate.item_weights import co_taken, ease_weights
from capsid.ids.histories import ReadableIds
from capsid.ids.reading import TokenBatch
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged
from capsid.settings import setting

# Scores pass through a softmax over the catalogue, whose rounding must not tie what differs.
SCALE = 10.0
# Popularity is worth less than any difference between two weights that matters.
POPULAR = 1e-3


@runtime_checkable
class LearnsAtOnce(Protocol):
    """A generator that learns from training histories and item vectors without steps."""

    def learn(self, ids: SemanticIds, sequences: Ragged, vectors_ND: np.ndarray | None) -> None:
        """Learn everything; called once, after `build`."""


@dataclass(kw_only=True)
class SimilarItemsGenerator(PopularityGenerator):
    """Adds the lists of a history's items, each weighted by how late it was taken."""

    history: int = setting(50, "How many of a user's latest items are read.", least=1)
    decay: float = setting(
        1.0, "How much the list of an item counts, relative to that of the item after it.", above=0, most=1
    )
    neighbours: int = setting(100, "How many items the list of an item has.", least=1)

    def learn(self, ids: SemanticIds, sequences: Ragged, vectors_ND: np.ndarray | None) -> None:
        """See `LearnsAtOnce`."""
        lists, weights = self._lists(sequences.last(self.history), len(ids), vectors_ND)
        tokens_N = ids.prefix_free.take(np.arange(len(ids))).values
        largest = float(np.abs(weights).max(initial=0.0)) or 1.0
        self._keep(Ragged(tokens_N[lists.values].astype(np.int64), lists.offsets), weights / largest)

    def _lists(self, sequences: Ragged, items: int, vectors_ND: np.ndarray | None) -> tuple[Ragged, np.ndarray]:
        """The list of every item, and the weight of each entry."""
        raise NotImplementedError

    def _keep(self, lists: Ragged, weights: np.ndarray) -> None:
        self.lists_, self.weights_ = lists, torch.as_tensor(weights, dtype=torch.float32)

    def start(self, histories: TokenBatch, inputs_RD: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The scores of all tokens after every history are the state."""
        items = histories.items
        user, late = items.row_numbers, np.repeat(items.lengths, items.lengths) - 1 - items.positions
        found = self.lists_.take(items.values)
        entry = Ragged(np.arange(len(self.weights_)), self.lists_.offsets).take(items.values).values
        fade = torch.as_tensor(self.decay ** late[found.row_numbers].astype(np.float64), dtype=torch.float32)
        scores_UV = (POPULAR * _ranked(self.logits_)).repeat(len(items), 1)
        place = torch.as_tensor(user[found.row_numbers] * scores_UV.shape[1] + found.values)
        scores_UV.view(-1).index_add_(0, place, SCALE * fade * self.weights_[torch.as_tensor(entry)])
        return scores_UV, torch.zeros(len(items), 1, 0)

    def step(self, state: Tensor, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Ids end after one token, so a step happens only for padding."""
        return state, torch.zeros(*tokens_UW.shape, 0)

    def scores(self, state: Tensor, rows_UWD: Tensor, row_R: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """The scores of the row's history."""
        users, beams = rows_UWD.shape[:2]
        if row_R is None:
            return state[:, None].expand(users, beams, -1).clone()
        return state[row_R // beams]

    def scores_of(self, state: Tensor, rows_UWD: Tensor, row_E: Tensor, token_E: Tensor) -> Tensor:  # type: ignore[override]
        """The scores of these tokens."""
        return state[row_E // rows_UWD.shape[1], token_E]

    def state(self) -> dict[str, Tensor]:
        """Popularity, and the lists."""
        lists = {"tokens": torch.as_tensor(self.lists_.values), "offsets": torch.as_tensor(self.lists_.offsets)}
        return {**super().state(), **lists, "weights": self.weights_}

    def load_state(self, ids: ReadableIds, state: dict[str, Tensor]) -> Self:
        """The lists as saved."""
        super().load_state(ids, state)
        tokens, offsets, weights = (state[name] for name in ("tokens", "offsets", "weights"))
        whole = tokens.dtype == offsets.dtype == torch.int64 and weights.dtype == torch.float32
        if not (whole and _are_lists(tokens, offsets, len(weights), len(ids.prefix_free), ids.layout.vocabulary)):
            raise ConfigError("the saved lists of similar items are broken", hint="fit again")
        self._keep(Ragged(tokens.numpy(), offsets.numpy()), weights.numpy())
        return self


@dataclass(kw_only=True)
class ItemKnnGenerator(SimilarItemsGenerator):
    """Items that the users of an item took too, by the cosine of their users (Sarwar et al. 2001)."""

    kind: ClassVar[str] = "item-knn"
    shrink: float = setting(10.0, "Added to the denominator of the cosine, so that rare pairs count less.", least=0)

    def _lists(self, sequences: Ragged, items: int, vectors_ND: np.ndarray | None) -> tuple[Ragged, np.ndarray]:
        return co_taken(sequences, items, neighbours=self.neighbours, shrink=self.shrink)


@dataclass(kw_only=True)
class EaseGenerator(SimilarItemsGenerator):
    """EASE: every item regressed on all others in closed form; sparse where the catalogue is large."""

    kind: ClassVar[str] = "ease"
    neighbours: int = setting(500, "How many items the list of an item has.", least=1)
    regularisation: float = setting(200.0, "The ridge penalty (lambda).", above=0)

    def _lists(self, sequences: Ragged, items: int, vectors_ND: np.ndarray | None) -> tuple[Ragged, np.ndarray]:
        return ease_weights(sequences, items, regularisation=self.regularisation, neighbours=self.neighbours)


@dataclass(kw_only=True)
class VectorKnnGenerator(SimilarItemsGenerator):
    """Items with similar vectors; what is counted is exp(4 cosine) - 1, as by the memory (`capsid.ids.neighbours`)."""

    kind: ClassVar[str] = "vector-knn"

    def _lists(self, sequences: Ragged, items: int, vectors_ND: np.ndarray | None) -> tuple[Ragged, np.ndarray]:
        if vectors_ND is None:
            raise ConfigError("generator=vector-knn needs item vectors", hint="set an encoder, such as encoder=text")
        near = neighbours_of(vectors_ND, self.neighbours)
        return near.items, near.likeness


def _ranked(logits_V: Tensor) -> Tensor:
    """Ranks from 0 to 1, equal for equal scores."""
    _, rank_V = logits_V.unique(return_inverse=True)
    return rank_V.float() / max(int(rank_V.max()), 1)


def _are_lists(tokens: Tensor, offsets: Tensor, entries: int, items: int, vocabulary: int) -> bool:
    """Whether the arrays are one list of tokens for each item."""
    if offsets.shape != (items + 1,) or tokens.shape != (entries,):
        return False
    inside = not entries or bool(tokens.min() >= 0 and tokens.max() < vocabulary)
    return inside and int(offsets[0]) == 0 and int(offsets[-1]) == entries and bool((offsets.diff() >= 0).all())
