"""A synthetic catalogue shaped like an industrial one; any shard can be made from the seed alone.

Items hang below the leaves of a planted tree. Leaves have power-law sizes, noise has a few strong directions, and one
item in ten is an exact copy of another. A mixture of round clusters of equal size would be too easy: with it, hardly
any ids collide. There is no behaviour in this data, so nothing here can say how well anything recommends.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from capsid.base.randomness import numpy_rng

BRANCHING = (48, 24, 12)
SHARD = 65_536


@dataclass(frozen=True)
class Catalogue:
    """`items` vectors of `dim` numbers. `power` is the exponent of leaf sizes, `copies` the share of exact copies."""

    items: int
    dim: int = 128
    seed: int = 0
    power: float = 1.1
    copies: float = 0.1
    noise: float = 0.35

    @property
    def shards(self) -> int:
        """How many shards the catalogue has."""
        return -(-self.items // SHARD)

    def vectors(self, shard: int) -> np.ndarray:
        """The vectors of a shard; they depend on the seed and the shard's number only. Shape: (rows, dim)."""
        return self._made(shard)[0]

    def copied(self, shard: int) -> int:
        """How many rows of a shard are copies of an earlier row of it."""
        return self._made(shard)[1]

    def _made(self, shard: int) -> tuple[np.ndarray, int]:
        rng = numpy_rng(self.seed, "catalogue", shard)
        leaves = rng.choice(len(self._leaf_shares), SHARD, p=self._leaf_shares)
        spread = rng.standard_normal((SHARD, self.dim), dtype=np.float32) * self._spectrum
        vectors = self._leaf_vectors[leaves] + self.noise * (spread @ self._basis)
        # A copy takes the vector of an earlier row that is none itself, so that each has one original.
        copy = rng.random(SHARD) < self.copies
        copy[0] = False
        originals = np.flatnonzero(~copy)
        rows = np.flatnonzero(copy)
        before = np.searchsorted(originals, rows)
        vectors[rows] = vectors[originals[(rng.random(len(rows)) * before).astype(np.int64)]]
        # A shorter last shard is the beginning of a full one: the catalogue grows without changing.
        size = min(SHARD, self.items - shard * SHARD)
        return vectors[:size].astype(np.float32), int(copy[:size].sum())

    @cached_property
    def _leaf_shares(self) -> np.ndarray:
        """Zipf's law over leaves in random order."""
        count = int(np.prod(BRANCHING))
        shares = 1.0 / np.arange(1, count + 1) ** self.power
        return numpy_rng(self.seed, "leaf sizes").permutation(shares / shares.sum())

    @cached_property
    def _leaf_vectors(self) -> np.ndarray:
        """The sum of the nodes on the way to a leaf, each level with half the length of the one above."""
        rng, total = numpy_rng(self.seed, "tree"), np.zeros((1, self.dim), dtype=np.float32)
        for level, children in enumerate(BRANCHING):
            nodes = rng.standard_normal((len(total) * children, self.dim), dtype=np.float32)
            nodes *= 0.5**level / np.linalg.norm(nodes, axis=1, keepdims=True)
            total = np.repeat(total, children, axis=0) + nodes
        return total

    @cached_property
    def _spectrum(self) -> np.ndarray:
        """Standard deviations of noise by direction: falling, squares sum to 1."""
        variances = 1.0 / np.arange(1, self.dim + 1)
        return np.sqrt(variances / variances.sum()).astype(np.float32)

    @cached_property
    def _basis(self) -> np.ndarray:
        """Directions of noise that are not the axes."""
        square = numpy_rng(self.seed, "noise").standard_normal((self.dim, self.dim))
        return np.linalg.qr(square)[0].astype(np.float32)
