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
        user, beam, token, node, leaf = (c[mask] for c in (self.user, self.beam, self.token, self.node, self.leaf))
        return Edges(user, beam, token, node, leaf, self.score[torch.as_tensor(mask)])


@dataclass(eq=False)
class RootScores:
    """A watch that keeps the log-probabilities of the root's children, so that they are computed only once.

    Shape: (U, children), in trie order; None until a search has called it.
    """

    scores_UC: np.ndarray | None = None

    def weighed(self, depth: int, edges: Edges, open_E: np.ndarray) -> None:
        """Keep the first depth."""
        if depth == 0:
            self.scores_UC = edges.score.numpy().reshape(int(edges.user[-1]) + 1, -1)


class Watch(Protocol):
    """Called at every step."""

    def weighed(self, depth: int, edges: Edges, open_E: np.ndarray) -> None:
        """All edges that were scored at a depth (the root's are depth 0), and which of them the filter allows."""
