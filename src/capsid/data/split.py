"""Splits: which interactions train, and which (history, target) cases validate and test.

A split is made before anything learns. Order inside a user is the dataset's order, so file order breaks time ties.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capsid.data.dataset import Dataset
from capsid.errors import DataError
from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class Cases:
    """Evaluation cases: a user, what they took before, and the one item they took next."""

    users: np.ndarray
    histories: Ragged
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: np.ndarray) -> Cases:
        """Some of the cases."""
        return Cases(self.users[rows], self.histories.take(rows), self.targets[rows])


@dataclass(frozen=True, eq=False)
class Split:
    """`train` has a row for every user of the dataset (possibly empty)."""

    kind: str
    train: Ragged
    valid: Cases
    test: Cases

    def cases(self, name: str) -> Cases:
        """The cases called "valid" or "test"."""
        if name not in ("valid", "test"):
            raise DataError(f"there is no split {name!r}", hint="allowed: valid, test")
        return self.valid if name == "valid" else self.test


def leave_one_out(dataset: Dataset) -> Split:
    """Last item is test, the one before is validation, the rest trains (TIGER, section 4; the protocol).

    Users with fewer than three items only train: they have nothing that could be held out and still leave a history.
    """
    sequences, lengths = dataset.sequences, dataset.sequences.lengths
    held = np.flatnonzero(lengths >= 3)
    ends = np.where(lengths >= 3, lengths - 2, lengths)
    if not len(held):
        raise DataError("no user has three or more items, so nothing can be held out", hint="give longer histories")
    last = sequences.offsets[1:][held] - 1
    return Split(
        "leave-one-out",
        _heads(sequences, np.arange(len(sequences)), ends),
        Cases(held, _heads(sequences, held, lengths[held] - 2), sequences.values[last - 1].astype(np.int64)),
        Cases(held, _heads(sequences, held, lengths[held] - 1), sequences.values[last].astype(np.int64)),
    )


def _heads(sequences: Ragged, rows: np.ndarray, lengths: np.ndarray) -> Ragged:
    """The first `lengths[i]` values of row `rows[i]`."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    index = np.repeat(sequences.offsets[:-1][rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
    return Ragged(sequences.values[index], offsets)
