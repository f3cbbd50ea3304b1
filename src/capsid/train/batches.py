"""Plans batches: shuffled every epoch, sequences of similar length together, deterministic for a seed.

Knows only lengths, not what a sequence holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capsid.base.randomness import numpy_rng


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """Row numbers by batch. `window` batches are sorted by length together: a larger one pads less and mixes less."""

    lengths: np.ndarray
    batch_size: int
    seed: int
    window: int = 32

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def epoch(self, number: int) -> list[np.ndarray]:
        """The batches of an epoch, in training order."""
        rng = numpy_rng(self.seed, "batches", number)
        rows = rng.permutation(len(self.lengths))
        span = self.window * self.batch_size
        batches = []
        for start in range(0, len(rows), span):
            part = rows[start : start + span]
            part = part[np.argsort(self.lengths[part], kind="stable")]
            batches += [part[i : i + self.batch_size] for i in range(0, len(part), self.batch_size)]
        order = rng.permutation(len(batches))
        return [batches[i] for i in order]
