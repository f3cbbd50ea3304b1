"""What to do when several items get the same codes. Each policy is a value; a recipe names one.

`suffix` is TIGER's policy (arXiv 2305.05065, section 3.1): one more token that numbers the items of a group. `hash`
does the same with numbers that look random (ActionPiece, arXiv 2502.13581, section 3.1). `bucket` lets items share an
id, and the ranking expands the bucket. `reassign` gives colliding items other last codes, as LC-Rec does (arXiv
2311.09049). A policy is applied once to a catalogue and again to items that are added later; settled ids never change.
It does not see vectors: the costs of last codes are passed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np

from capsid.errors import ConfigError
from capsid.ids.order import group_numbers
from capsid.ids.reassign import Costs, balanced_last_codes, cheapest_last_codes
from capsid.ragged import Ragged
from capsid.settings import Checked, setting


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
    capacity: int = setting(
        0, "Number of suffix tokens; 0: twice what the catalogue needs, which leaves room for new items.", least=0
    )

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
        "cheapest",
        "How last codes are chosen: with minimal total cost under each prefix, or balanced within each group.",
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
