"""The fate of every prefix that a beam search scored: kept, or cut by the filter, the width or the bound.

A recorder watches the search, and fates are derived afterwards from its record, so watching is cheap and cannot change
a result. Knows numbers, not ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capsid.decode.watch import Edges, FirstEdges
from capsid.ids.trie import Trie

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
        """All first tokens."""
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
    """The fate of each edge of every level, as an index into `FATES`.

    `results` are the returned leaves; `found` are all leaves that the search found, if it was not the last to rank.
    """
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
