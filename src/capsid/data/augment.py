"""Cuts and augments training sequences: pieces that fit a network, random ends, random crops, random orders.

Many shop datasets record only the day, so part of the order is random; a model that sees several orders fits less of
that noise. Rows of item numbers in, rows out; knows no tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from capsid.ragged import Ragged
from capsid.settings import check_settings, setting


@dataclass(kw_only=True, frozen=True)
class Augment:
    """Random crop and shuffle, drawn each time a sequence is used."""

    kind: ClassVar[str] = "augment"
    crop: float = setting(
        0.0, "Probability that a sequence is cropped to a random run of two or more of its items.", least=0, most=1
    )
    shuffle: float = setting(0.0, "Probability that a sequence's items are put in random order.", least=0, most=1)

    def __post_init__(self) -> None:
        check_settings(self)

    def apply(self, rows: Ragged, rng: np.random.Generator) -> Ragged:
        """The augmented rows; rows with fewer than two items do not change."""
        out = self._cropped(rows, rng) if self.crop else rows
        return self._shuffled(out, rng) if self.shuffle else out

    def _cropped(self, rows: Ragged, rng: np.random.Generator) -> Ragged:
        lengths = rows.lengths
        cut = (rng.random(len(rows)) < self.crop) & (lengths >= 2)
        kept = np.where(cut, rng.integers(2, np.maximum(lengths, 2) + 1), lengths)
        return rows.slices(rng.integers(0, lengths - kept + 1), kept)

    def _shuffled(self, rows: Ragged, rng: np.random.Generator) -> Ragged:
        row = rows.row_numbers
        chosen = (rng.random(len(rows)) < self.shuffle)[row]
        # Sorting by (row, key) permutes only inside rows; rows that are not chosen use their own order as key.
        key = np.where(chosen, rng.random(len(row)), np.arange(len(row)))
        return Ragged(rows.values[np.lexsort([key, row])], rows.offsets)


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
