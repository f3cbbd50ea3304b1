"""New last codes for colliding rows, with minimal total cost or balanced by Sinkhorn. Rows and costs in, rows out.

NumPy only. Knows neither items nor where costs come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from capsid.errors import DataError
from capsid.ids.assignment import balanced_columns, cheapest_columns
from capsid.ids.order import group_numbers
from capsid.ragged import Ragged

Costs = Callable[[np.ndarray], np.ndarray]
"""Costs of every last code for the given rows. Shape: (rows, at least the codes of their last depth)."""

# A network call for a few rows costs nearly as much as one for hundreds.
ROWS_AT_ONCE = 4096
# Rows whose costs differ by less than this share of their range count as equal: the limit of single precision.
ROUNDING = 1e-5
# Rounds of balancing, at most.
ROUNDS = 20


def cheapest_last_codes(codes: Ragged, sizes: Sequence[int], costs: Costs, *, fixed: int = 0) -> Ragged:
    """Codes in which rows that collided have different last codes, as long as their prefix has free ones.

    The first `fixed` rows do not move, nor do rows with unique codes. Under every prefix the colliding rows get the
    assignment of minimal total cost among the codes that no other row there uses. Rows for which no code is left keep
    and share theirs. `costs` numbers rows from `fixed`.
    """
    groups = group_numbers(codes)
    moves_N = np.bincount(groups)[groups] > 1
    moves_N[:fixed] = False
    values = codes.values.copy()
    # Rows of equal length compete for the codes of one depth.
    for length in np.unique(codes.lengths[moves_N]):
        depth = _Depth(codes, int(length) - 1, sizes[length - 1], moves_N)
        for prefixes in _portions(depth.movers.lengths):
            rows = np.concatenate([depth.movers[p] for p in prefixes])
            costs_RK = _asked(costs, rows - fixed, depth.size)
            ends = np.cumsum(depth.movers.lengths[prefixes])
            for prefix, costs_MK in zip(prefixes, np.split(costs_RK, ends[:-1])):
                movers, free = depth.movers[prefix], depth.free(prefix)
                choice_M = cheapest_columns(costs_MK[:, free])
                moved = choice_M >= 0
                values[codes.offsets[movers[moved] + 1] - 1] = free[choice_M[moved]]
    return Ragged(values, codes.offsets)


class _Depth:
    """The rows that end at one depth, grouped by prefix: which rows move, and which codes are free for them."""

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
        # An absent code (-1) blocks nothing.
        passes_R = ~ends_R & (code_R >= 0)
        self._passed = Ragged.grouped(code_R[passes_R], prefix_R[passes_R], count)

    def free(self, prefix: int) -> np.ndarray:
        """Codes that end no row that stays and that no longer id goes through, unless a mover leaves it there."""
        free_K = np.ones(self.size, dtype=bool)
        free_K[self._passed[prefix]] = False
        free_K[self._left[prefix]] = True
        free_K[self._held[prefix]] = False
        return np.flatnonzero(free_K)


def balanced_last_codes(codes: Ragged, sizes: Sequence[int], costs: Costs, *, rounds: int = ROUNDS) -> Ragged:
    """Codes after at most `rounds` rounds in which every group of equal rows is balanced on its own (LC-Rec).

    Sinkhorn assigns a group to the codes of its last depth, which separates its rows. A moved row may then collide
    with another one, hence the rounds. Rows with equal costs cannot be separated and share their code.
    """
    for _ in range(rounds):
        balanced = _one_round(codes, sizes, costs)
        if balanced == codes:
            break
        codes = balanced
    return codes


def _one_round(codes: Ragged, sizes: Sequence[int], costs: Costs) -> Ragged:
    groups = group_numbers(codes)
    collides_N = np.bincount(groups)[groups] > 1
    values = codes.values.copy()
    for length in np.unique(codes.lengths[collides_N]):
        rows = np.flatnonzero(collides_N & (codes.lengths == length))
        members = Ragged.grouped(rows, groups[rows], 0)
        for portion in _portions(members.lengths):
            costs_RK = _asked(costs, np.concatenate([members[g] for g in portion]), sizes[length - 1])
            ends = np.cumsum(members.lengths[portion])
            for group, costs_MK in zip(portion, np.split(costs_RK, ends[:-1])):
                chosen_M = balanced_columns(_with_equal_twins(costs_MK))
                values[codes.offsets[members[group] + 1] - 1] = chosen_M
    return Ragged(values, codes.offsets)


def _with_equal_twins(costs_MK: np.ndarray) -> np.ndarray:
    """Costs where rows that differ only by rounding are made equal: rounding must not decide which code a row gets."""
    order = np.argsort(costs_MK.sum(1), kind="stable")
    apart_M = np.abs(np.diff(costs_MK[order], axis=0)).max(1) > ROUNDING * np.ptp(costs_MK)
    # Sorted by their sums, equal rows are neighbours: take the index of the first of each run.
    first_M = np.maximum.accumulate(np.arange(len(order)) * np.concatenate([[True], apart_M]))
    out_MK = np.empty_like(costs_MK)
    out_MK[order] = costs_MK[order[first_M]]
    return out_MK


def _asked(costs: Costs, rows: np.ndarray, size: int) -> np.ndarray:
    """Costs of the first `size` codes for these rows. Shape: (rows, size)."""
    costs_RK = np.asarray(costs(rows), dtype=np.float64)[:, :size]
    if costs_RK.shape != (len(rows), size) or not np.isfinite(costs_RK).all():
        raise DataError(f"costs of last codes must be finite and of shape {(len(rows), size)}")
    return costs_RK


def _portions(lengths_G: np.ndarray) -> Iterator[list[int]]:
    """Non-empty groups in chunks, so that costs are asked for a few thousand rows at a time."""
    portion: list[int] = []
    rows = 0
    for group in np.flatnonzero(lengths_G).tolist():
        portion.append(group)
        rows += int(lengths_G[group])
        if rows >= ROWS_AT_ONCE:
            yield portion
            portion, rows = [], 0
    if portion:
        yield portion
