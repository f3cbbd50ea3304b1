"""The weights of all pairs of tokens, kept exact while the heaviest pair is merged repeatedly.

The code released with ActionPiece lets pairs that vanish keep their weight; here every pair has the weight that a new
count of all sequences would give. Knows chains and numbers, no items.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from capsid.tokenize.actionpiece.chains import Chains, Changes

# Pairs below this share of the heaviest weight stay out of the heap until the heavier ones are used up.
HEAP_SHARE = 0.7


@dataclass(frozen=True)
class Learnt:
    """A pair that was merged, the smaller token first, and its weight at that time."""

    pair: tuple[int, int]
    weight: float


class Counts:
    """The weights of all pairs of some chains, by key, in units."""

    def __init__(self, chains: Chains) -> None:
        self.chains = chains
        self.weights: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        self._least = 1
        self._add(chains.weights())

    def merge_heaviest(self, token: int, least: float) -> Learnt | None:
        """Replace the heaviest pair by a token; None if no pair weighs at least `least`.

        Of pairs of equal weight the one with the smaller tokens is merged.
        """
        key = self._heaviest()
        if key is None or self.weights[key] < least * self.chains.unit:
            return None
        learnt = Learnt(self.chains.pair(key), self.weights[key] / self.chains.unit)
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
        for key, amount in zip(changes.keys_E.tolist(), changes.amounts_E.tolist()):
            weight = weights.get(key, 0) + amount
            if not weight:
                del weights[key]
                continue
            weights[key] = weight
            if weight >= least and amount > 0:
                heapq.heappush(heap, (-weight, key))
