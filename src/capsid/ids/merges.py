"""Merge tables: which tokens of an item become one token. They can be applied to any id and undone.

A `MergeTable` merges neighbours and may use tokens that earlier passes made. Applying and undoing returns the same
tokens, so merging neither adds nor removes collisions. A `PieceTable` merges tokens in any order, inside an item or
across neighbouring items (ActionPiece, Hou et al. 2025, arXiv 2502.13581, section 3.2): an item is a set of tokens, one
per code, and a history is segmented by the merges in the order in which they were learnt, so the tokens of an item
depend on its neighbours. Knows numbers only: not how merges were found or what a token means.
Shapes: R tokens of all rows, P pairs, N items, T tokens per item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import ClassVar, Self

import numpy as np

from capsid.errors import DataError
from capsid.ragged import Ragged

_ARRAYS = ("left", "right", "strength", "number")
LONGEST = 1_000


@dataclass(frozen=True)
class MergeTable:
    """Merge i replaces the neighbours `left[i]`, `right[i]` by the token `first + i`. Ordered by pass (`number`, from
    1), then by falling `strength`, so the first n merges are a table themselves. Merges with a strength below `least`
    are inactive: they keep their token, but it is not used."""

    form: ClassVar[str] = "neighbours"
    first: int = 0
    left: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    strength: tuple[float, ...] = ()
    number: tuple[int, ...] = ()
    least: float = 0.0

    def __post_init__(self) -> None:
        if len({len(getattr(self, name)) for name in _ARRAYS}) > 1:
            raise DataError("a table of merges has columns of different lengths")
        if len(set(zip(self.left, self.right))) < len(self):
            raise DataError("a table of merges has the same pair twice")
        if self.passes > len(self):
            raise DataError(f"a table of {len(self)} merges cannot take {self.passes} passes")
        order = [(n, -s) for n, s in zip(self.number, self.strength)]
        if order != sorted(order) or (order and order[0][0] < 1):
            raise DataError("a table of merges must be ordered by pass (from 1), then by falling strength")
        for own, pair in zip(self.number, zip(self.left, self.right)):
            for member in pair:
                made = member - self.first
                if member < 0 or made >= len(self) or (made >= 0 and self.number[made] >= own):
                    raise DataError(f"a merge of pass {own} uses the token {member}, which no earlier pass made")
        # Merges of merges can double in length each time, so lengths are checked before members are expanded.
        lengths: list[int] = []
        for pair in zip(self.left, self.right):
            lengths.append(sum(1 if m < self.first else lengths[m - self.first] for m in pair))
            if lengths[-1] > LONGEST:
                raise DataError(f"a merge joins {lengths[-1]:,} tokens, more than an id has")

    @classmethod
    def of(
        cls,
        first: int,
        left: Sequence[int] | np.ndarray,
        right: Sequence[int] | np.ndarray,
        strength: Sequence[float] | np.ndarray,
        number: Sequence[int] | np.ndarray,
    ) -> Self:
        """From columns of any sequence type."""
        return cls(
            int(first),
            tuple(int(t) for t in left),
            tuple(int(t) for t in right),
            tuple(float(s) for s in strength),
            tuple(int(n) for n in number),
        )

    def __len__(self) -> int:
        return len(self.left)

    @property
    def passes(self) -> int:
        """Number of passes over an id."""
        return max(self.number, default=0)

    @cached_property
    def members(self) -> Ragged:
        """The unmerged tokens of every merge."""
        return self._expanded()

    def _expanded(self) -> Ragged:
        rows: list[list[int]] = []
        for left, right in zip(self.left, self.right):
            rows.append(
                [t for part in (left, right) for t in (rows[part - self.first] if part >= self.first else [part])]
            )
        return Ragged.from_rows(rows)

    def check_depths(self, depth_of: np.ndarray, codes: int) -> None:
        """Members must be codes of neighbouring depths; `depth_of` is the depth of every unmerged token."""
        depth = depth_of[self.members.values]
        inside = np.ones(len(depth), dtype=bool)
        inside[self.members.offsets[1:-1]] = False
        if not ((depth >= 0) & (depth < codes)).all() or (np.diff(depth)[inside[1:]] != 1).any():
            raise DataError("a merge joins tokens that are not codes of neighbouring depths")

    def apply(self, tokens: Ragged) -> Ragged:
        """Rows with neighbours merged. In a row the strongest merge goes first, among equals the leftmost;
        a pair that overlaps a merged one waits for the next pass (CapsID, appendix A.2: greedy, no overlap)."""
        for number in range(1, self.passes + 1):
            tokens = self._one_pass(tokens, number)
        return tokens

    def undo(self, tokens: Ragged) -> Ragged:
        """Rows with every merged token replaced by its members."""
        if not len(self):
            return tokens
        merged = tokens.values >= self.first
        which = tokens.values[merged] - self.first
        if len(which) and int(which.max()) >= len(self):
            raise DataError(f"token {self.first + int(which.max())} is not in the table of merges")
        sizes = np.ones(len(tokens.values), dtype=np.int64)
        sizes[merged] = self.members.lengths[which]
        out = tokens.repeat(sizes)
        out.values[np.repeat(merged, sizes)] = self.members.take(which).values
        return out

    def truncated(self, size: int) -> Self:
        """The first `size` merges; members come before the tokens made of them, so no merge loses its members."""
        kept = max(size, 0)
        return replace(self, **{name: getattr(self, name)[:kept] for name in _ARRAYS})

    def state(self) -> dict[str, np.ndarray]:
        """Arrays to store."""
        numbers = {name: np.array(getattr(self, name), dtype=np.int64) for name in ("left", "right", "number")}
        strength = np.array(self.strength, dtype=np.float64)
        return {**numbers, "strength": strength, "first": np.array(self.first), "least": np.array(self.least)}

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> Self:
        table = cls.of(int(state["first"]), *(state[name] for name in _ARRAYS))
        return replace(table, least=float(state["least"]))

    def _one_pass(self, tokens: Ragged, number: int) -> Ragged:
        which, rank = self._pairs(tokens, number)
        place = np.flatnonzero(which >= 0)
        rank = rank[place]
        taken = np.zeros(len(tokens.values), dtype=bool)
        # A pair that beats both neighbours is chosen by a greedy walk too, so all such pairs of all rows are merged at
        # once, for a few rounds.
        while len(place):
            beside = place[1:] == place[:-1] + 1
            won = np.ones(len(place), dtype=bool)
            won[1:] &= ~(beside & (rank[:-1] <= rank[1:]))
            won[:-1] &= ~(beside & (rank[1:] < rank[:-1]))
            taken[place[won]] = True
            waits = ~won
            waits[1:] &= ~(beside & won[:-1])
            waits[:-1] &= ~(beside & won[1:])
            place, rank = place[waits], rank[waits]
        if not taken.any():
            return tokens
        values = tokens.values.copy()
        values[taken] = self.first + which[taken[:-1]]
        kept = np.ones(len(values), dtype=bool)
        kept[np.flatnonzero(taken) + 1] = False
        return Ragged(values, tokens.offsets).keep(kept)

    def _pairs(self, tokens: Ragged, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The merge of every two neighbours in one row, or -1; and the rank of its strength. Shapes: (values - 1,)."""
        values = tokens.values.astype(np.int64)
        which = np.full(max(len(values) - 1, 0), -1, dtype=np.int64)
        rank = np.zeros(len(which), dtype=np.int64)
        own = np.flatnonzero((np.array(self.number) == number) & (np.array(self.strength) >= self.least))
        if not len(own) or not len(which):
            return which, rank
        left, right = np.array(self.left)[own], np.array(self.right)[own]
        # Most pairs can be ruled out by their left token alone.
        begins = np.zeros(max(self.first + len(self), int(values.max()) + 1), dtype=bool)
        begins[left] = True
        inside = begins[values[:-1]]
        borders = tokens.offsets[1:-1]
        inside[borders[(borders > 0) & (borders < len(values))] - 1] = False
        place = np.flatnonzero(inside)
        base = len(begins)
        keys = left * base + right
        order = np.argsort(keys)
        wanted = values[place] * base + values[place + 1]
        found = np.minimum(np.searchsorted(keys[order], wanted), len(own) - 1)
        same = keys[order][found] == wanted
        merge = order[found[same]]
        levels = np.unique(-np.array(self.strength)[own], return_inverse=True)[1]
        which[place[same]], rank[place[same]] = own[merge], levels[merge]
        return which, rank


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
        """The tokens of items without context: any two tokens of an item may be merged. Tokens of an item are ordered
        by their smallest member."""
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
        Where occurrences overlap, the leftmost one is merged."""
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
