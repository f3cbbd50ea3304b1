"""What a search reports to a watch. Watching does not change results, and without a watch it costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Edges:
    """Hypotheses one token longer, ordered by user, then beam, then trie order. Shape of every array: (E,)."""

    user: np.ndarray
    beam: np.ndarray
    token: np.ndarray
    node: np.ndarray
    leaf: np.ndarray
    score: Tensor

    def select(self, mask: np.ndarray) -> Edges:
        """The edges where the mask is true."""
        if mask.all():
            return self
        # Looking the places up once is faster than a mask for every column.
        kept = np.flatnonzero(mask)
        user, beam, token, node, leaf = (c[kept] for c in (self.user, self.beam, self.token, self.node, self.leaf))
        return Edges(user, beam, token, node, leaf, self.score[torch.as_tensor(kept)])


@dataclass(frozen=True, eq=False)
class FirstEdges:
    """The first tokens that were scored: every user has the same ones, in trie order. Shapes: C tokens, U users.

    `open_UC` marks those that the filter allows.
    """

    token: np.ndarray
    node: np.ndarray
    leaf: np.ndarray
    scores_UC: Tensor
    open_UC: np.ndarray

    @property
    def edges(self) -> Edges:
        """One by one, user by user."""
        users = len(self.scores_UC)
        user = np.repeat(np.arange(users), len(self.token))
        token, node, leaf = (np.tile(column, users) for column in (self.token, self.node, self.leaf))
        return Edges(user, np.zeros_like(user), token, node, leaf, self.scores_UC.reshape(-1))


@dataclass(eq=False)
class RootScores:
    """A watch that keeps the log-probabilities of the root's children, so that they are computed only once.

    Shape: (U, children), in trie order; None until a search has called it.
    """

    scores_UC: np.ndarray | None = None

    def begun(self, first: FirstEdges) -> None:
        """Keep the scores."""
        self.scores_UC = first.scores_UC.numpy()

    def weighed(self, depth: int, edges: Edges, open_E: np.ndarray) -> None:
        """Later tokens do not matter."""


class Watch(Protocol):
    """Called at every step."""

    def begun(self, first: FirstEdges) -> None:
        """All first tokens."""

    def weighed(self, depth: int, edges: Edges, open_E: np.ndarray) -> None:
        """All edges that were scored at a later depth (1: second tokens), and which of them the filter allows."""
