"""Which items followed which in the training sequences, and how often: the memory of transitions.

Counts are kept by distance: 1 for the next item, 2 for the one after it. Items that are like the last items of a
history may be remembered beside those that followed them. When a network is trained, the pair that is predicted does
not count for its own prediction (leave one out); otherwise every target would have been seen before.
Knows item numbers and no scores; tokens are only looked up. NumPy only. Shapes: N items, C cases (histories, or items
to predict), J distances (twice as many columns with neighbours), E entries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from capsid.encode.nearest import Neighbours
from capsid.ids.item_tokens import ItemRows
from capsid.ids.reading import Lesson
from capsid.ragged import Ragged

# The most followers that are kept per item and distance, so that a request costs the same in every catalogue.
MOST_FOLLOWERS = 200


@dataclass(frozen=True, eq=False)
class Followers:
    """For each case, the items that followed its last items in training (one row per case), and `own`, their tokens.

    `counts_EJ[e, j]` says how often item e came j + 1 positions after the item that is j + 1 positions before the case.
    With neighbours, as many columns follow: how much item e is like that item.
    """

    items: Ragged
    counts_EJ: np.ndarray
    own: Ragged

    def take(self, cases: np.ndarray) -> Followers:
        """Those of the given cases, in the given order."""
        entry = Ragged(np.arange(len(self.counts_EJ)), self.items.offsets).take(cases).values
        return Followers(self.items.take(cases), self.counts_EJ[entry], self.own.take(entry))

    def seen_as(self, tokens: ItemRows) -> Followers:
        """The same items with other ids; `tokens` has those of the whole catalogue."""
        return replace(self, own=tokens.take(self.items.values))


@dataclass(frozen=True, eq=False)
class Transitions:
    """For each distance: the followers of every item (one row per item, ascending), and how often each followed.
    `near`: which items are alike, if that is remembered too."""

    followers: tuple[Ragged, ...]
    counts: tuple[np.ndarray, ...]
    near: Neighbours | None = None

    @classmethod
    def count(cls, sequences: Ragged, items: int, distances: int) -> Transitions:
        """Counts over whole sequences of item numbers."""
        found = [_pairs(sequences, items, distance) for distance in range(1, distances + 1)]
        return cls(tuple(rows for rows, _ in found), tuple(counts for _, counts in found))

    def __len__(self) -> int:
        return len(self.followers[0])

    @property
    def distances(self) -> int:
        """How many distances are counted."""
        return len(self.followers)

    def grown(self, items: int, near: Neighbours | None = None) -> Transitions:
        """The same counts for a catalogue of `items` items; the new ones follow nothing and nothing follows them.
        `near` are the neighbours in the grown catalogue, needed if there are any now."""
        more = Ragged.from_lengths(np.zeros(0, np.int32), np.zeros(items - len(self), np.int64))
        return Transitions(tuple(rows.append(more) for rows in self.followers), self.counts, near)

    def following(self, histories: Ragged, tokens: ItemRows) -> Followers:
        """The followers of whole histories; `tokens` are those of the whole catalogue."""
        return self.after(last_items(histories, histories.lengths, np.arange(len(histories)), self.distances), tokens)

    def before(self, lesson: Lesson, tokens: ItemRows, *, counted: bool) -> Followers:
        """The followers of what comes before each item of a lesson. `counted`: its transitions are among those here."""
        last_CJ = last_items(lesson.batch.items, lesson.before_M, lesson.row_M, self.distances)
        return self.after(last_CJ, tokens, lesson.item_M if counted else None)

    def after(self, last_CJ: np.ndarray, tokens: ItemRows, targets_C: np.ndarray | None = None) -> Followers:
        """The followers of cases whose last items are `last_CJ`, the most recent first (-1: none).

        `tokens` are those of the whole catalogue. With `targets` every case is a transition of the training sequences,
        which does not count for itself.
        """
        columns = list(zip(self.followers, self.counts))
        if self.near is not None:
            columns += [(self.near.items, self.near.likeness)] * self.distances
        parts = [
            _at(rows, counts, last_CJ[:, number % self.distances]) for number, (rows, counts) in enumerate(columns)
        ]
        stride = len(self)
        # One entry for each pair of case and follower, whatever the distances at which it was found.
        key_E, entry = np.unique(np.concatenate([case * stride + item for case, item, _ in parts]), return_inverse=True)
        counts_EJ = np.zeros((len(key_E), len(parts)), dtype=np.float32)
        column = np.repeat(np.arange(len(parts)), [len(case) for case, _, _ in parts])
        counts_EJ[entry, column] = np.concatenate([count for _, _, count in parts])
        case_E, item_E = np.divmod(key_E, stride)
        if targets_C is not None:
            own_E = np.flatnonzero(targets_C[case_E] == item_E)
            counted = (own_E, slice(self.distances))
            counts_EJ[counted] = np.maximum(counts_EJ[counted] - 1, 0)
        seen = counts_EJ.any(1)
        rows = Ragged.grouped(item_E[seen], case_E[seen], len(last_CJ))
        return Followers(rows, counts_EJ[seen], tokens.take(item_E[seen]))

    def state(self) -> dict[str, np.ndarray]:
        counted = {
            f"{name}/{number}": array
            for number, (rows, counts) in enumerate(zip(self.followers, self.counts))
            for name, array in (("items", rows.values), ("offsets", rows.offsets), ("counts", counts))
        }
        near = {} if self.near is None else {f"near/{name}": array for name, array in self.near.state().items()}
        return counted | near


def last_items(items: Ragged, ends: np.ndarray, rows: np.ndarray, distances: int) -> np.ndarray:
    """The items at the last positions before `ends` of rows, the most recent first; -1: none. Shape: (C, J)."""
    position_CJ = ends[:, None] - 1 - np.arange(distances)
    out = np.full(position_CJ.shape, -1, dtype=np.int64)
    there = position_CJ >= 0
    out[there] = items.values[(items.offsets[rows][:, None] + position_CJ)[there]]
    return out


def _at(rows: Ragged, counts: np.ndarray, last_C: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cases, the items of their last items' rows, and the counts of these items."""
    there = np.flatnonzero(last_C >= 0)
    last = last_C[there]
    # Numbers of the entries themselves, so that counts can be taken with the items.
    entry = Ragged.ranges(rows.offsets[last], rows.lengths_of(last))
    return there[entry.row_numbers], rows.values[entry.values].astype(np.int64), counts[entry.values]


def _pairs(sequences: Ragged, items: int, distance: int) -> tuple[Ragged, np.ndarray]:
    """The followers of every item at one distance, and their counts."""
    row, value = sequences.row_numbers, sequences.values.astype(np.int64)
    together = np.flatnonzero(row[distance:] == row[:-distance]) if len(row) > distance else np.zeros(0, np.int64)
    key, count = np.unique(value[together] * items + value[together + distance], return_counts=True)
    first, later = np.divmod(key, items)
    # Ranks among the followers of an item, the most frequent first; equal counts by item number.
    order = np.lexsort((later, -count, first))
    rank = np.empty(len(key), dtype=np.int64)
    rank[order] = Ragged.from_lengths(order, np.bincount(first, minlength=items)).positions
    kept = rank < MOST_FOLLOWERS
    rows = Ragged.from_lengths(later[kept].astype(np.int32), np.bincount(first[kept], minlength=items))
    return rows, count[kept].astype(np.int32)
