"""Other last codes for rows that collide, at least total cost. Rows and costs in, rows out; NumPy only.

Knows neither items nor where costs come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from capsid.errors import DataError
from capsid.ids.assignment import cheapest_columns
from capsid.ids.order import group_numbers
from capsid.ragged import Ragged

Costs = Callable[[np.ndarray], np.ndarray]
"""Costs of every last code for the given rows. Shape: (rows, at least the codes of their last depth)."""

# Asking a network for a few rows costs nearly as much as asking for some hundreds.
ROWS_AT_ONCE = 4096


def cheapest_last_codes(codes: Ragged, sizes: Sequence[int], costs: Costs, *, fixed: int = 0) -> Ragged:
    """Codes in which rows that collided have different last codes, as long as their prefix has free ones.

    The first `fixed` rows do not move, and neither does a row that is alone. Under every prefix the colliding rows get
    the assignment of least total cost among the codes that nobody else there uses. Rows for which no code is left keep
    their own and share it. `costs` is asked for rows counted from `fixed`.
    """
    groups = group_numbers(codes)
    moves_N = np.bincount(groups)[groups] > 1
    moves_N[:fixed] = False
    values = codes.values.copy()
    # Rows of one length compete for the codes of one depth.
    for length in np.unique(codes.lengths[moves_N]):
        depth = _Depth(codes, int(length) - 1, sizes[length - 1], moves_N)
        for prefixes in depth.portions():
            rows = np.concatenate([depth.movers[p] for p in prefixes])
            costs_RK = np.asarray(costs(rows - fixed), dtype=np.float64)[:, : depth.size]
            if costs_RK.shape != (len(rows), depth.size) or not np.isfinite(costs_RK).all():
                raise DataError(f"last codes need finite costs of shape {(len(rows), depth.size)}")
            for prefix, costs_MK in zip(prefixes, np.split(costs_RK, np.cumsum([*map(depth.count, prefixes)])[:-1])):
                movers, free = depth.movers[prefix], depth.free(prefix)
                choice_M = cheapest_columns(costs_MK[:, free])
                moved = choice_M >= 0
                values[codes.offsets[movers[moved] + 1] - 1] = free[choice_M[moved]]
    return Ragged(values, codes.offsets)


class _Depth:
    """The rows that reach one depth, by their prefix: who moves there, and which codes are free for them."""

    def __init__(self, codes: Ragged, depth: int, size: int, moves_N: np.ndarray) -> None:
        self.size = size
        there = np.flatnonzero(codes.lengths > depth)
        ends_R = codes.lengths[there] == depth + 1
        moves_R = moves_N[there] & ends_R
        prefix_R = group_numbers(codes.take(there).first(depth))
        count = int(prefix_R.max()) + 1
        code_R = codes.values[codes.offsets[there] + depth]
        self.movers = Ragged.grouped(there[moves_R], prefix_R[moves_R], count)
        self._left = Ragged.grouped(code_R[moves_R], prefix_R[moves_R], count)
        self._held = Ragged.grouped(code_R[ends_R & ~moves_R], prefix_R[ends_R & ~moves_R], count)
        # An absent slot (-1) blocks no code.
        passes_R = ~ends_R & (code_R >= 0)
        self._passed = Ragged.grouped(code_R[passes_R], prefix_R[passes_R], count)

    def count(self, prefix: int) -> int:
        """How many rows move under a prefix."""
        return len(self.movers[prefix])

    def free(self, prefix: int) -> np.ndarray:
        """Codes that end no row that stays and that no longer id goes through, unless a mover leaves it there."""
        free_K = np.ones(self.size, dtype=bool)
        free_K[self._passed[prefix]] = False
        free_K[self._left[prefix]] = True
        free_K[self._held[prefix]] = False
        return np.flatnonzero(free_K)

    def portions(self) -> Iterator[list[int]]:
        """Prefixes under which rows move, so many at a time that costs are asked for a few thousand rows."""
        portion: list[int] = []
        rows = 0
        for prefix in np.flatnonzero(self.movers.lengths).tolist():
            portion.append(prefix)
            rows += self.count(prefix)
            if rows >= ROWS_AT_ONCE:
                yield portion
                portion, rows = [], 0
        if portion:
            yield portion
