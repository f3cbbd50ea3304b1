"""Cuts training sequences: into pieces that fit a network's history length without losing a target, or at random."""

from __future__ import annotations

import numpy as np

from capsid.ragged import Ragged


def training_pieces(sequences: Ragged, history: int) -> Ragged:
    """Sequences of at least two items, cut into pieces of at most history + 1 items that overlap by one."""
    lengths = sequences.lengths
    counts = np.where(lengths >= 2, -(-(lengths - 1) // history), 0)
    numbers = Ragged.ranges(0, counts)
    row = numbers.row_numbers
    # Cut from the end, so that the latest items have the longest history.
    stop = lengths[row] - numbers.values * history
    start = np.maximum(stop - history - 1, 0)
    return sequences.slices(start, stop - start, row)


def random_ends(pieces: Ragged, rng: np.random.Generator) -> Ragged:
    """Every piece cut after a random one of its items, the second at the earliest, each as likely as the others."""
    return pieces.slices(0, rng.integers(2, pieces.lengths + 1))
