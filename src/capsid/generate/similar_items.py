"""Generators without a network: every item of a history speaks for the items on its list, the latest most.

The lists are computed at once from training histories or from item vectors (`capsid.encode.nearest`). Ids have one
token, and scores are of one step. Equal scores are told apart by popularity. `co_taken` is the cosine of two items'
users, shrunk towards 0 for rare ones. `ease_weights` is EASE (Steck 2019, arXiv 1905.03375, equation 8): the ridge
regression of every item on all others. In a large catalogue the inverse does not fit into memory, and every item is
regressed on the items that it was taken with most often; with all of them as candidates the two agree.
Shapes: U users, V tokens, E entries of lists, N items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from capsid.encode.nearest import neighbours_of
from capsid.errors import ConfigError
from capsid.generate.generator import PopularityGenerator
from capsid.ids.reading import ReadableIds, TokenBatch
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged
from capsid.settings import setting

# The inverse of this many items takes 1.6 GB and about a minute of processor time.
EXACT_UP_TO = 20_000
CANDIDATES = 100


def co_taken(sequences: Ragged, items: int, *, neighbours: int, shrink: float) -> tuple[Ragged, np.ndarray]:
    """For every item the items that most of its users took too, and the cosines."""
    counts_NN = _together(sequences, items)
    own_N = counts_NN.diagonal()
    pairs = counts_NN.tocoo()
    row, column = pairs.coords
    apart = row != column
    row, column = row[apart], column[apart]
    weights = pairs.data[apart] / (np.sqrt(own_N[row] * own_N[column]) + shrink)
    return _strongest(row, column, weights, items, neighbours)


def ease_weights(
    sequences: Ragged, items: int, *, regularisation: float, neighbours: int, exact_up_to: int = EXACT_UP_TO
) -> tuple[Ragged, np.ndarray]:
    """For every item of a history the items that it speaks for or against most, and the weights."""
    counts_NN = _together(sequences, items)
    if items <= exact_up_to:
        # Columns first, as LAPACK reads it: it is inverted in place, and no second copy is made.
        return _exact(counts_NN.astype(np.float32).toarray(order="F"), regularisation, neighbours)
    offsets, place_N = counts_NN.indptr.astype(np.int64), np.full(items, -1)
    others = Ragged(counts_NN.indices.astype(np.int64), offsets)
    entries = Ragged(np.arange(counts_NN.nnz), offsets)
    parts = [_regressed(others, entries, counts_NN.data, item, regularisation, place_N) for item in range(items)]
    row = np.concatenate([source for source, _ in parts])
    column = np.repeat(np.arange(items), [len(source) for source, _ in parts])
    return _strongest(row, column, np.concatenate([weights for _, weights in parts]), items, neighbours)


def _together(sequences: Ragged, items: int) -> Any:
    """How many users took both items; on the diagonal, how many took the item."""
    from scipy.sparse import csr_array

    shape = (len(sequences), items)
    taken_UN = csr_array((np.ones(len(sequences.values)), (sequences.row_numbers, sequences.values)), shape=shape)
    taken_UN.sum_duplicates()
    taken_UN.data[:] = 1.0
    return (taken_UN.T @ taken_UN).tocsr()


def _exact(gram_NN: np.ndarray, regularisation: float, neighbours: int) -> tuple[Ragged, np.ndarray]:
    from scipy.linalg.lapack import spotrf, spotri

    items = len(gram_NN)
    gram_NN[np.diag_indices(items)] += regularisation
    # In place, and one triangle: half of the work and of the memory of a general inverse.
    factor_NN, failed = spotrf(gram_NN, lower=1, clean=0, overwrite_a=1)
    inverse_NN, broken = spotri(factor_NN, lower=1, overwrite_c=1) if not failed else (factor_NN, failed)
    if failed or broken:
        raise ConfigError("the items cannot be regressed on each other", hint="set a larger generator.regularisation")
    own_N = inverse_NN.diagonal().copy()
    row, column, weights = [], [], []
    for item in range(items):
        # Weights of `item` for all others: its row of the symmetric inverse over their diagonal.
        both_N = np.concatenate([inverse_NN[item, :item], inverse_NN[item:, item]])
        speaks_N = -both_N / own_N
        speaks_N[item] = 0.0
        best = _largest(np.abs(speaks_N), neighbours)
        row.append(np.full(len(best), item))
        column.append(best)
        weights.append(speaks_N[best])
    return _strongest(np.concatenate(row), np.concatenate(column), np.concatenate(weights), items, neighbours)


def _regressed(
    others: Ragged, entries: Ragged, counts: np.ndarray, item: int, regularisation: float, place_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The items that one item is regressed on, and their weights. `place_N` is all -1, and is left so."""
    own, taken = others[item], counts[entries[item]]
    own, taken = own[own != item], taken[own != item]
    chosen = own[np.sort(np.argsort(-taken, kind="stable")[:CANDIDATES])]
    rows, entry = others.take(chosen), entries.take(chosen).values
    place_N[chosen] = np.arange(len(chosen))
    column = place_N[rows.values]
    gram_CC = np.diag(np.full(len(chosen), float(regularisation)))
    inside = column >= 0
    row, here = rows.row_numbers, rows.values == item
    gram_CC[row[inside], column[inside]] += counts[entry[inside]]
    wanted_C = np.zeros(len(chosen))
    wanted_C[row[here]] = counts[entry[here]]
    place_N[chosen] = -1
    return chosen, np.linalg.solve(gram_CC, wanted_C)


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    best = np.argpartition(-values, count)[:count] if count < len(values) else np.arange(len(values))
    return best[values[best] > 0]


def _strongest(
    row: np.ndarray, column: np.ndarray, weights: np.ndarray, items: int, most: int
) -> tuple[Ragged, np.ndarray]:
    """At most the `most` largest weights of every row; equal ones by item number."""
    order = np.lexsort((column, -np.abs(weights), row))
    row, column, weights = row[order], column[order], weights[order]
    rows = Ragged.from_lengths(column.astype(np.int64), np.bincount(row, minlength=items))
    kept = rows.positions < most
    return rows.keep(kept), weights[kept].astype(np.float32)


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
    decay: float = setting(1.0, "Weight of an item's list, relative to that of the item after it.", above=0, most=1)
    neighbours: int = setting(100, "How many items the list of an item has.", least=1)

    def learn(self, ids: SemanticIds, sequences: Ragged, vectors_ND: np.ndarray | None) -> None:
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
        users, beams = rows_UWD.shape[:2]
        if row_R is None:
            return state[:, None].expand(users, beams, -1).clone()
        return state[row_R // beams]

    def scores_of(self, state: Tensor, rows_UWD: Tensor, row_E: Tensor, token_E: Tensor) -> Tensor:  # type: ignore[override]
        return state[row_E // rows_UWD.shape[1], token_E]

    def state(self) -> dict[str, Tensor]:
        lists = {"tokens": torch.as_tensor(self.lists_.values), "offsets": torch.as_tensor(self.lists_.offsets)}
        return {**super().state(), **lists, "weights": self.weights_}

    def load_state(self, ids: ReadableIds, state: dict[str, Tensor]) -> Self:
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
    """Items with similar vectors; what is counted is exp(4 cosine) - 1, as by the memory (`capsid.encode.nearest`)."""

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
