"""What to do when several items get the same codes. Each policy is a value; a recipe names one.

`suffix` is TIGER's policy (arXiv 2305.05065, section 3.1): one more token that numbers the items of a group. `hash`
does the same with numbers that look random (ActionPiece, arXiv 2502.13581, section 3.1). `bucket` lets items share an
id, and the ranking expands the bucket. `reassign` gives colliding items other last codes, with minimal total cost or
balanced by Sinkhorn as LC-Rec does (arXiv 2311.09049). A policy is applied once to a catalogue and again to items that
are added later; settled ids never change. It does not see vectors: the costs of last codes are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np

from capsid.errors import ConfigError, DataError
from capsid.ids.assignment import balanced_columns, cheapest_columns
from capsid.ids.order import group_numbers
from capsid.ragged import Ragged
from capsid.settings import Checked, setting

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
    """Codes after at most `rounds` rounds in which every group of equal rows is balanced on its own (LC-Rec). Sinkhorn
    assigns a group to the codes of its last depth, which separates its rows. A moved row may then collide with another
    one, hence the rounds. Rows with equal costs cannot be separated and share their code."""
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


@dataclass(frozen=True, eq=False)
class Settled:
    """Codes after a policy, each row as long as before, and the suffix of every row if the policy adds one."""

    codes: Ragged
    suffixes: np.ndarray | None = None


class CollisionPolicy(Protocol):
    """May change last codes, add a suffix, or leave items with equal codes in one bucket."""

    kind: ClassVar[str]
    needs_costs: ClassVar[bool] = False

    def settle(
        self, codes: Ragged, sizes: Sequence[int], *, old: Settled | None = None, costs: Costs | None = None
    ) -> Settled:
        """Settle these rows. `old` rows come before them and stay as they are. `sizes` are the codebook sizes. `costs`
        gives the costs of every last code for rows of `codes`; None where the tokenizer has none."""

    def width(self, suffixes: np.ndarray | None) -> int:
        """How many suffix tokens the layout reserves."""
        return 0


@dataclass(kw_only=True, frozen=True)
class Suffix(Checked, CollisionPolicy):
    """A last token that numbers the items with equal codes; 0 for an item whose codes are unique."""

    kind: ClassVar[str] = "suffix"
    capacity: int = setting(0, "Suffix tokens; 0: twice what the catalogue needs, room for new items.", least=0)

    def settle(
        self, codes: Ragged, sizes: Sequence[int], *, old: Settled | None = None, costs: Costs | None = None
    ) -> Settled:
        """Unchanged codes, and the number of every row within its group, in row order."""
        every = codes if old is None else old.codes.append(codes)
        return Settled(codes, running_number(group_numbers(every))[len(every) - len(codes) :])

    def width(self, suffixes: np.ndarray | None) -> int:
        """The capacity, or room for twice the largest group, rounded up to a power of two."""
        if self.capacity:
            return self.capacity
        need = 1 if suffixes is None or not len(suffixes) else int(suffixes.max()) + 1
        return 1 << (2 * need - 1).bit_length()


@dataclass(kw_only=True, frozen=True)
class Hashed(Checked, CollisionPolicy):
    """A last token for every item, different for items with equal codes, which begins at a hash of the codes. All
    suffix tokens are used alike, so that none of them becomes a part of most items."""

    kind: ClassVar[str] = "hash"
    capacity: int = setting(256, "Number of suffix tokens, and of items that may have equal codes.", least=1)

    def settle(
        self, codes: Ragged, sizes: Sequence[int], *, old: Settled | None = None, costs: Costs | None = None
    ) -> Settled:
        """Unchanged codes, and a suffix for every row."""
        number = Suffix().settle(codes, sizes, old=old).suffixes
        assert number is not None
        spread = ((_row_hashes(codes) + number.astype(np.uint64)) % np.uint64(self.capacity)).astype(np.int32)
        # A number beyond the capacity stays as it is: the layout refuses it with the size of the group.
        return Settled(codes, np.where(number < self.capacity, spread, number))

    def width(self, suffixes: np.ndarray | None) -> int:
        return self.capacity


@dataclass(kw_only=True, frozen=True)
class Bucket(CollisionPolicy):
    """Items with equal codes share one id."""

    kind: ClassVar[str] = "bucket"

    def settle(
        self, codes: Ragged, sizes: Sequence[int], *, old: Settled | None = None, costs: Costs | None = None
    ) -> Settled:
        return Settled(codes)


@dataclass(kw_only=True, frozen=True)
class Reassign(Checked, CollisionPolicy):
    """Colliding items get other last codes; items that still collide share a bucket.

    `cheapest` solves the assignment exactly under every prefix, so one round suffices and ids are unique wherever a
    prefix has at most as many items as codes. `sinkhorn` is LC-Rec's method: each group of colliding items is
    balanced on its own, for several rounds. Items that are added later get the cheapest free code.
    """

    kind: ClassVar[str] = "reassign"
    needs_costs: ClassVar[bool] = True
    how: Literal["cheapest", "sinkhorn"] = setting(
        "cheapest", "Last codes have minimal total cost under each prefix, or are balanced within each group."
    )

    def settle(
        self, codes: Ragged, sizes: Sequence[int], *, old: Settled | None = None, costs: Costs | None = None
    ) -> Settled:
        """Other last codes for rows that collide with each other or with an old row."""
        if costs is None:
            raise ConfigError(
                "the collision policy 'reassign' needs a tokenizer with costs of last codes",
                hint="use collisions=suffix or collisions=bucket, or a tokenizer with last_costs",
            )
        if old is None and self.how == "sinkhorn":
            return Settled(balanced_last_codes(codes, sizes, costs))
        if old is None:
            return Settled(cheapest_last_codes(codes, sizes, costs))
        fixed = len(old.codes)
        every = cheapest_last_codes(old.codes.append(codes), sizes, costs, fixed=fixed)
        return Settled(every.take(np.arange(fixed, len(every))))


COLLISIONS: dict[str, type] = {c.kind: c for c in (Suffix, Hashed, Bucket, Reassign)}


def running_number(groups: np.ndarray) -> np.ndarray:
    """0, 1, 2 ... inside every group, in row order."""
    members = Ragged.grouped(np.arange(len(groups)), groups, 0)
    out = np.empty(len(groups), dtype=np.int32)
    out[members.values] = members.positions
    return out


def _row_hashes(codes: Ragged) -> np.ndarray:
    """A number for every row that depends on its values only. Shape: (rows,)."""
    factor = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        mixed = (codes.values.astype(np.int64) + 2).astype(np.uint64) * factor
        mixed = (mixed ^ (mixed >> np.uint64(29))) * (2 * codes.positions.astype(np.uint64) + np.uint64(3)) * factor
        return codes.sums(mixed ^ (mixed >> np.uint64(32)))
