"""Learns which tokens to merge inside items and across neighbouring items, by weighted counts (ActionPiece, Hou et al.
2025, arXiv 2502.13581, section 3.2.1).

Merges are learnt once, from training sequences, and apply to any id and any history, including those of new items.
Sequences of item sets are chains of nodes, in which a pair of tokens is merged everywhere at once. A node is a set of
tokens; at first every item is a node. Merging two tokens of one node puts the new token into the node. Merging tokens
of two neighbouring nodes removes both and puts the new token into a node of its own between them, the paper's
intermediate node. A node without tokens leaves its chain.

If the tokens of a node are put in random order, two tokens of a node of size n are neighbours with probability 2 / n,
and two tokens of neighbouring nodes of sizes n and m with probability 1 / (n m). These are the weights of pairs. They
are kept as whole multiples of 1 / `unit`, so sums are exact. The code released with ActionPiece lets pairs that vanish
keep their weight; here every pair has the weight that a new count of all sequences would give. Shapes: G nodes, T
tokens per node, E entries.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import numpy as np

from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.errors import ConfigError, NotFittedError
from capsid.ids.merges import PieceTable
from capsid.ids.semantic_ids import SemanticIds
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.settings import Checked, setting

NONE = -1


# Keys of pairs, each once, and by how much their weights changed, in units.
Changes = tuple[np.ndarray, np.ndarray]


class Chains:
    """All sequences. `tokens` are those of every item, none twice in an item; `sequences` hold item numbers. New tokens
    are numbered from `first`, at most `most` of them. A pair is written as one number, `key`."""

    def __init__(self, tokens: Ragged, sequences: Ragged, first: int, most: int) -> None:
        self.stride = first + most
        own = tokens.take(sequences.values)
        width = max(int(own.lengths.max(initial=1)), 1)
        self.unit = math.lcm(*range(1, width + 1)) ** 2
        # A merge across nodes adds a node and leaves one token fewer. The last row is never used, so that index -1 may
        # be read and written.
        room = len(own) + len(own.values) + 1
        self.tokens_GT = np.full((room, width), NONE, dtype=np.int64)
        self.tokens_GT[own.row_numbers, own.positions] = own.values
        self.count = len(own)
        numbers = np.arange(len(own))
        self._before_G, self._after_G = (np.full(room, NONE, dtype=np.int64) for _ in range(2))
        self._before_G[: len(own)] = np.where(sequences.positions > 0, numbers - 1, NONE)
        later = sequences.positions + 1 < np.repeat(sequences.lengths, sequences.lengths)
        self._after_G[: len(own)] = np.where(later, numbers + 1, NONE)
        # All false between calls.
        self._flag_G = np.zeros(room, dtype=bool)
        by_token = Ragged.grouped(own.row_numbers, own.values, first)
        # The nodes in which a token was put; it may have been merged since.
        self._holders: dict[int, np.ndarray] = {t: by_token[t] for t in np.flatnonzero(by_token.lengths).tolist()}

    def key(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """The numbers of pairs; the order inside a pair does not matter."""
        return np.minimum(one, other) * self.stride + np.maximum(one, other)

    def pair(self, key: int) -> tuple[int, int]:
        """The pair of a number, the smaller token first."""
        return divmod(key, self.stride)

    def weights(self) -> Changes:
        return _summed([self._weights(np.arange(self.count))])

    def merge(self, key: int, token: int) -> Changes:
        """Replace a pair by a new token everywhere: inside nodes, then between nodes, from left to right."""
        a, b = self.pair(key)
        # A node has a token once, so that it never holds a pair of equal tokens.
        inside = self._nodes_with(a)[: None if a != b else 0]
        inside = inside[(self.tokens_GT[inside] == b).any(1)]
        left = self._matching(a, b, inside)
        right = self._after_G[left]
        old = self._weights(np.concatenate([inside, left, right]))
        rows_ET = self.tokens_GT[inside]
        self.tokens_GT[inside] = np.where(rows_ET == a, token, np.where(rows_ET == b, NONE, rows_ET))
        new = self._join(left, right, a, b, token)
        self._holders[token] = np.concatenate([inside, new])
        changed = np.concatenate([inside, left, right, new])
        changed = changed[(self.tokens_GT[changed] != NONE).any(1)]
        return _summed([self._weights(changed), (old[0], -old[1])])

    def _nodes_with(self, token: int) -> np.ndarray:
        nodes = self._holders.get(token, np.zeros(0, dtype=np.int64))
        nodes = nodes[(self.tokens_GT[nodes] == token).any(1)]
        self._holders[token] = nodes
        return nodes

    def _matching(self, a: int, b: int, taken: np.ndarray) -> np.ndarray:
        """Nodes that are merged with their successors: of overlapping pairs in a chain, the first one is merged. Nodes
        that are `taken` have used their tokens already."""
        flag_G, parts = self._flag_G, []
        flag_G[taken] = True
        for here, there in {(a, b), (b, a)}:
            nodes = self._nodes_with(here)
            nodes = nodes[~flag_G[nodes] & (self._after_G[nodes] != NONE)]
            after = self._after_G[nodes]
            parts.append(nodes[~flag_G[after] & (self.tokens_GT[after] == there).any(1)])
        flag_G[taken] = False
        waiting, found = np.concatenate(parts), []
        flag_G[waiting] = True
        while len(waiting):
            # A node whose predecessor waits too might lose its token to it.
            first = waiting[~flag_G[self._before_G[waiting]]]
            found.append(first)
            flag_G[first] = flag_G[self._after_G[first]] = False
            waiting = waiting[flag_G[waiting]]
        return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *found]))

    def _join(self, left: np.ndarray, right: np.ndarray, a: int, b: int, token: int) -> np.ndarray:
        """Take a and b out of neighbouring nodes and put the token between them; returns the new nodes."""
        for nodes in (left, right):
            rows_ET = self.tokens_GT[nodes]
            self.tokens_GT[nodes] = np.where((rows_ET == a) | (rows_ET == b), NONE, rows_ET)
        new = np.arange(self.count, self.count + len(left))
        self.count += len(left)
        self.tokens_GT[new, 0] = token
        self._before_G[new], self._after_G[new] = left, right
        self._after_G[left], self._before_G[right] = new, new
        # No two nodes of `left` are neighbours now, and no two of `right`; a node of each may be.
        for nodes in (left, right):
            empty = nodes[(self.tokens_GT[nodes] == NONE).all(1)]
            before, after = self._before_G[empty], self._after_G[empty]
            self._after_G[before], self._before_G[after] = after, before
        return new

    def _weights(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keys and weights of all pairs inside these nodes, and between them and their neighbours."""
        before = self._before_G[nodes]
        left = np.unique(np.concatenate([nodes, before[before != NONE]]))
        left = left[self._after_G[left] != NONE]
        inner, outer = self._inside(nodes), self._between(left, self._after_G[left])
        return np.concatenate([inner[0], outer[0]]), np.concatenate([inner[1], outer[1]])

    def _inside(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows_ET = self.tokens_GT[nodes]
        sizes_E = (rows_ET != NONE).sum(1)
        one, other = np.array(list(combinations(range(rows_ET.shape[1]), 2)), dtype=np.int64).reshape(-1, 2).T
        there = (rows_ET[:, one] != NONE) & (rows_ET[:, other] != NONE)
        keys = self.key(rows_ET[:, one], rows_ET[:, other])[there]
        weight_E = 2 * self.unit // np.maximum(sizes_E, 1)
        return keys, np.broadcast_to(weight_E[:, None], there.shape)[there]

    def _between(self, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        one_ET1, other_E1T = self.tokens_GT[left][:, :, None], self.tokens_GT[right][:, None, :]
        there = (one_ET1 != NONE) & (other_E1T != NONE)
        weight_E = self.unit // np.maximum(there.sum((1, 2)), 1)
        return self.key(one_ET1, other_E1T)[there], np.broadcast_to(weight_E[:, None, None], there.shape)[there]


def _summed(parts: list[tuple[np.ndarray, np.ndarray]]) -> Changes:
    """Each key once, with the sum of its amounts; keys whose amounts cancel are left out."""
    keys, amounts = (np.concatenate(column) for column in zip(*parts))
    order = np.argsort(keys, kind="stable")
    keys, amounts = keys[order], amounts[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    if not len(starts):
        return keys, amounts
    sums = np.add.reduceat(amounts, starts)
    return keys[starts][sums != 0], sums[sums != 0]


# Pairs below this share of the heaviest weight stay out of the heap until the heavier ones are used up.
HEAP_SHARE = 0.7


class Counts:
    """The weights of all pairs of some chains, by key, in units."""

    def __init__(self, chains: Chains) -> None:
        self.chains = chains
        self.weights: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        self._least = 1
        self._add(chains.weights())

    def merge_heaviest(self, token: int, least: float) -> tuple[tuple[int, int], float] | None:
        """Replace the heaviest pair by a token; None if no pair weighs at least `least`. Of pairs of equal weight the
        one with the smaller tokens is merged."""
        key = self._heaviest()
        if key is None or self.weights[key] < least * self.chains.unit:
            return None
        learnt = self.chains.pair(key), self.weights[key] / self.chains.unit
        self._add(self.chains.merge(key, token))
        return learnt

    def _heaviest(self) -> int | None:
        while self.weights:
            while self._heap:
                heaviest, key = -self._heap[0][0], self._heap[0][1]
                weight = self.weights.get(key, 0)
                if weight == heaviest:
                    return key
                # A weight that has risen is in the heap already; one that has fallen is entered now.
                heapq.heappop(self._heap)
                if self._least <= weight < heaviest:
                    heapq.heappush(self._heap, (-weight, key))
            self._least = max(int(HEAP_SHARE * max(self.weights.values())), 1)
            self._heap = [(-weight, key) for key, weight in self.weights.items() if weight >= self._least]
            heapq.heapify(self._heap)
        return None

    def _add(self, changes: Changes) -> None:
        weights, heap, least = self.weights, self._heap, self._least
        for key, amount in zip(*(column.tolist() for column in changes)):
            weight = weights.get(key, 0) + amount
            if not weight:
                del weights[key]
                continue
            weights[key] = weight
            if weight >= least and amount > 0:
                heapq.heappush(heap, (-weight, key))


# Merges between two progress updates.
TOLD_EVERY = 100
# A pair is merged if it is expected at least this often in randomly ordered sequences.
MIN_WEIGHT = 1.0


@dataclass(kw_only=True)
class Pieces(Checked):
    """The heaviest pair of tokens is merged, again and again; weights are exact after every merge."""

    kind: ClassVar[str] = "pieces"
    size: int = setting(
        6_912, "How many merges are learnt, at most; with 4 x 256 codes and 256 suffixes, 8,192 tokens in all.", least=0
    )

    @property
    def table_(self) -> PieceTable:
        if not hasattr(self, "pairs_"):
            raise NotFittedError("the merges are not fitted", hint="call fit first")
        pairs = [(int(a), int(b)) for a, b in self.pairs_]
        return PieceTable.of_pairs(self.first_, pairs, self.weights_.tolist())

    def shifted(self, bias: float) -> Pieces:
        """There is no gate to shift."""
        raise ConfigError("merges=pieces has no gate", hint="set merges=semantic-bpe")

    def fit(
        self,
        ids: SemanticIds,
        table: ItemTable,
        *,
        centres_VD: np.ndarray | None = None,
        seed: int = 0,
        progress: Progress = silent,
        checkpoint: CheckpointFile | None = None,
    ) -> Pieces:
        """Count pairs in the table's training sequences. It takes seconds to a minute, so there is no checkpoint."""
        self.first_ = ids.layout.plain.vocabulary
        self.counts_ = np.bincount(table.sequences.values, minlength=len(ids)).astype(np.int64)
        counts = Counts(Chains(ids.unmerged, table.sequences, self.first_, self.size))
        learnt = []
        for number in range(self.size):
            found = counts.merge_heaviest(self.first_ + number, MIN_WEIGHT)
            if found is None:
                break
            learnt.append(found)
            if number % TOLD_EVERY == 0:
                progress.update(f"merges: {number:,}/{self.size:,}, heaviest pair {found[1]:,.1f}")
        self.pairs_ = np.array([pair for pair, _ in learnt], dtype=np.int64).reshape(-1, 2)
        self.weights_ = np.array([weight for _, weight in learnt], dtype=np.float64)
        last = f", the last of weight {self.weights_[-1]:,.1f}" if learnt else ""
        progress.line(f"merges: {len(learnt):,} pairs of tokens inside items and across neighbours{last}")
        return self

    def state(self) -> dict[str, np.ndarray]:
        """The pairs in order, their weights, and each item's training count."""
        self.table_  # noqa: B018  (raises if not fitted)
        return {"first": np.array(self.first_), "pairs": self.pairs_, "weights": self.weights_, "counts": self.counts_}

    def load_state(self, state: dict[str, np.ndarray]) -> Pieces:
        self.first_, self.counts_ = int(state["first"]), state["counts"]
        self.pairs_, self.weights_ = state["pairs"], state["weights"]
        return self
