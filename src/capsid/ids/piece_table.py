"""Merges of tokens in any order, inside an item or across neighbouring items (ActionPiece, Hou et al. 2025, arXiv
2502.13581, section 3.2).

An item is a set of tokens, one per code. A history is segmented by the merges in the order in which they were learnt,
so the tokens of an item depend on its neighbours. Knows numbers only: not how merges were found or what a token means.
Shapes: R tokens of all rows, P pairs, N items, T tokens per item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import ClassVar

import numpy as np

from capsid.errors import DataError
from capsid.ids.merges import MergeTable
from capsid.ragged import Ragged

# The rank of a pair that is not merged.
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class PieceTable(MergeTable):
    """Merge i replaces `left[i]` and `right[i]`, in either order, by the token `first + i`. Earlier merges go first."""

    form: ClassVar[str] = "any-order"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.number != tuple(range(1, len(self) + 1)):
            raise DataError("every merge of unordered tokens must be a pass of its own")
        if any(a > b for a, b in zip(self.left, self.right)):
            raise DataError("a pair of unordered tokens must begin with the smaller one")

    @classmethod
    def of_pairs(cls, first: int, pairs: Sequence[tuple[int, int]], weights: Sequence[float]) -> PieceTable:
        """From pairs in the order in which they were learnt, with their weights."""
        if not pairs:
            return cls()
        left, right = zip(*pairs)
        return cls.of(first, left, right, weights, range(1, len(pairs) + 1))

    @cached_property
    def members(self) -> Ragged:
        """The unmerged tokens of every merge, smallest first. A token may occur twice, once per item."""
        rows = self._expanded()
        return Ragged(rows.values[np.lexsort([rows.values, rows.row_numbers])], rows.offsets)

    def check_depths(self, depth_of: np.ndarray, codes: int) -> None:
        """Members must be codes or suffixes."""
        if (depth_of[self.members.values] < 0).any():
            raise DataError("a merge joins tokens that are neither codes nor suffixes")

    def apply(self, tokens: Ragged) -> Ragged:
        """The tokens of items without context: any two tokens of an item may be merged.

        Tokens of an item are ordered by their smallest member.
        """
        if not len(self) or not len(tokens.values):
            return tokens
        rows_NT = tokens.dense(-1).astype(np.int64)
        pairs = np.array(list(combinations(range(rows_NT.shape[1]), 2)), dtype=np.int64).reshape(-1, 2)
        open_N = np.arange(len(rows_NT))
        while len(open_N) and len(pairs):
            left_NP, right_NP = rows_NT[open_N][:, pairs[:, 0]], rows_NT[open_N][:, pairs[:, 1]]
            rank_NP = self._ranks(left_NP.ravel(), right_NP.ravel()).reshape(left_NP.shape)
            best_N = rank_NP.argmin(1)
            rank_N = rank_NP[np.arange(len(open_N)), best_N]
            found = rank_N < NEVER
            open_N = open_N[found]
            rows_NT[open_N, pairs[best_N[found], 0]] = self.first + rank_N[found]
            rows_NT[open_N, pairs[best_N[found], 1]] = -1
        there_NT = rows_NT >= 0
        begins_NT = np.where(there_NT, self._begins(np.maximum(rows_NT, 0)), NEVER)
        rows_NT = np.take_along_axis(rows_NT, np.argsort(begins_NT, axis=1, kind="stable"), axis=1)
        return Ragged.from_dense(rows_NT.astype(tokens.values.dtype), there_NT.sum(1))

    def segment(self, tokens: Ragged) -> Ragged:
        """Rows with neighbours merged: always the earliest merge that a row allows, everywhere in the row at once.

        Where occurrences overlap, the leftmost one is merged.
        """
        if not len(self):
            return tokens
        row_R, value_R = tokens.row_numbers, tokens.values.astype(np.int64)
        rank_R = self._next_ranks(value_R, row_R, np.arange(len(value_R)))
        done: list[tuple[np.ndarray, np.ndarray]] = []
        while len(row_R):
            starts = np.flatnonzero(np.diff(row_R, prepend=-1))
            best_R = np.repeat(np.minimum.reduceat(rank_R, starts), np.diff(starts, append=len(row_R)))
            ready_R = best_R < NEVER
            if not ready_R.all():
                done.append((row_R[~ready_R], value_R[~ready_R]))
                row_R, value_R, rank_R, best_R = (a[ready_R] for a in (row_R, value_R, rank_R, best_R))
            place = _leftmost(np.flatnonzero(rank_R == best_R))
            value_R[place] = self.first + rank_R[place]
            kept_R = np.ones(len(row_R), dtype=bool)
            kept_R[place + 1] = False
            row_R, value_R, rank_R = row_R[kept_R], value_R[kept_R], rank_R[kept_R]
            # Each merge has removed one token before every later place.
            place = place - np.arange(len(place))
            changed = np.concatenate([place, place[place > 0] - 1])
            rank_R[changed] = self._next_ranks(value_R, row_R, changed)
        rows, values = (np.concatenate([np.zeros(0, dtype=np.int64), *parts]) for parts in zip(*done, ((), ())))
        return Ragged.grouped(values.astype(tokens.values.dtype), rows.astype(np.int64), len(tokens))

    def _next_ranks(self, value_R: np.ndarray, row_R: np.ndarray, places: np.ndarray) -> np.ndarray:
        """The rank of the pair that begins at each place, NEVER at the end of a row."""
        after = np.minimum(places + 1, max(len(row_R) - 1, 0))
        rank = self._ranks(value_R[places], value_R[after])
        rank[(after == places) | (row_R[after] != row_R[places])] = NEVER
        return rank

    def _ranks(self, one_P: np.ndarray, other_P: np.ndarray) -> np.ndarray:
        """The merge of every pair of tokens, NEVER where there is none; -1 stands for no token."""
        keys, order = self._keys
        wanted = np.minimum(one_P, other_P) * self._stride + np.maximum(one_P, other_P)
        found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[found] == wanted, order[found], NEVER)

    @property
    def _stride(self) -> int:
        return self.first + len(self)

    @cached_property
    def _keys(self) -> tuple[np.ndarray, np.ndarray]:
        """The pairs as sorted numbers, and the merge of each."""
        keys = np.array(self.left, dtype=np.int64) * self._stride + np.array(self.right, dtype=np.int64)
        order = np.argsort(keys)
        return keys[order], order

    def _begins(self, tokens: np.ndarray) -> np.ndarray:
        """The smallest member of every token."""
        members = self.members
        begins = np.concatenate([np.arange(self.first), members.values[members.offsets[:-1]]])
        return begins[tokens]


def _leftmost(places: np.ndarray) -> np.ndarray:
    """Of places that follow one another directly, every other one, beginning with the first."""
    number = np.arange(len(places))
    begins = np.diff(places, prepend=-2) != 1
    return places[(number - np.maximum.accumulate(np.where(begins, number, 0))) % 2 == 0]
