"""The merge table: which neighbouring tokens of an item become one token. It can be applied to any id and undone.

A merge may use tokens that earlier passes made. Applying and undoing returns the same tokens, so merging neither adds
nor removes collisions. Knows numbers only: not how merges were found or what a token means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from capsid.errors import DataError
from capsid.ragged import Ragged

_ARRAYS = ("left", "right", "strength", "number")
LONGEST = 1_000


@dataclass(frozen=True)
class MergeTable:
    """Merge i replaces the neighbours `left[i]`, `right[i]` by the token `first + i`.

    Ordered by pass (`number`, from 1), then by falling `strength`, so the first n merges are a table themselves.
    Merges with a strength below `least` are inactive: they keep their token, but it is not used.
    """

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
        """The inverse of `state`."""
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
