"""What a search reports to a watch, and the fate of every prefix: kept, or cut by the filter, the width or the bound.

Watching does not change results, and without a watch it costs nothing. A recorder remembers what it saw, and fates are
derived from that afterwards. Knows numbers, not ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from capsid.ids.trie import Trie


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
    `open_UC` marks those that the filter allows."""

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
    """A watch that keeps the log-probabilities of the root's children, so that they are computed only once. Shape: (U,
    children), in trie order; None until a search has called it."""

    scores_UC: np.ndarray | None = None

    def begun(self, first: FirstEdges) -> None:
        self.scores_UC = first.scores_UC.numpy()

    def weighed(self, depth: int, edges: Edges, open_E: np.ndarray) -> None:
        """Later tokens do not matter."""


class Watch(Protocol):
    """Called at every step."""

    def begun(self, first: FirstEdges) -> None:
        """All first tokens."""

    def weighed(self, depth: int, edges: Edges, open_E: np.ndarray) -> None:
        """All edges that were scored at a later depth (1: second tokens), and which of them the filter allows."""


# A `result` is a finished id among the k best; `kept` prefixes were extended, or are finished ids whose items were then
# ranked by vectors. The other names say what cut a prefix.
FATES = ("result", "kept", "width", "bound", "filter")
RESULT, KEPT, WIDTH, BOUND, FILTER = range(len(FATES))


@dataclass(frozen=True, eq=False)
class Level:
    """All edges that were scored at one depth for one user, best first. Shape of every array: (E,)."""

    node: np.ndarray
    token: np.ndarray
    leaf: np.ndarray
    open: np.ndarray
    score: np.ndarray


class Recorder:
    """A watch that remembers every edge."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, Edges, np.ndarray]] = []

    def begun(self, first: FirstEdges) -> None:
        self.weighed(0, first.edges, first.open_UC.reshape(-1))

    def weighed(self, depth: int, edges: Edges, open_E: np.ndarray) -> None:
        """All edges that were scored at a depth."""
        self._seen.append((depth, edges, open_E))

    def levels(self, user: int) -> list[Level]:
        """The edges scored for one user, depth by depth; all waves of a depth together."""
        depths = max((depth for depth, _, _ in self._seen), default=-1) + 1
        return [self._level(user, depth) for depth in range(depths)]

    def _level(self, user: int, depth: int) -> Level:
        parts = []
        for at, edges, open_E in self._seen:
            if at == depth:
                mine = np.flatnonzero(edges.user == user)
                score = edges.score.numpy()[mine].astype(np.float64)
                parts.append((edges.node[mine], edges.token[mine], edges.leaf[mine], open_E[mine], score))
        node, token, leaf, is_open, score = (np.concatenate(column) for column in zip(*parts))
        best = np.lexsort([node, -score])
        return Level(node[best], token[best], leaf[best], is_open[best], score[best])


def fates(
    levels: list[Level], results: np.ndarray, *, width: int, k: int, trie: Trie, found: np.ndarray | None = None
) -> list[np.ndarray]:
    """The fate of each edge of every level, as an index into `FATES`. `results` are the returned leaves; `found` are
    all leaves that the search found, if it was not the last to rank."""
    out = []
    finished = np.zeros(0)
    for depth, level in enumerate(levels):
        after = levels[depth + 1].node if depth + 1 < len(levels) else np.zeros(0, dtype=np.int64)
        gone_on = np.unique(np.searchsorted(trie.first_child, after, side="right") - 1)
        finished = np.sort(np.concatenate([finished, level.score[level.leaf & level.open]]))[::-1][:k]
        bound = finished[-1] if len(finished) == k else -np.inf
        inner = level.open & ~level.leaf
        # Edges are sorted, so a running count is the rank among those that could be extended.
        rank = np.cumsum(inner) - 1
        fate = np.where(inner & (rank >= width) & (level.score > bound), WIDTH, BOUND)
        fate[inner & np.isin(level.node, gone_on)] = KEPT
        if found is not None:
            fate[level.leaf & np.isin(level.node, found)] = KEPT
        fate[level.leaf & np.isin(level.node, results)] = RESULT
        fate[~level.open] = FILTER
        out.append(fate)
    return out
