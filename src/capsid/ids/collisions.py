"""What to do when several items get the same codes. Each policy is a value; a recipe names one.

`suffix` is TIGER's answer (Rajput et al. 2023, section 3.1): one more token that counts inside the group. `bucket` lets
items share an id; the ranking expands the bucket. `reassign` gives colliding items other last codes, as LC-Rec does
(Zheng et al. 2023, arXiv 2311.09049). A policy is asked once for a catalogue and again for items that are added; ids
that are settled do not change. Looks at no vector: costs of last codes are handed in.
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
from capsid.settings import check_settings, setting


@dataclass(frozen=True, eq=False)
class Settled:
    """Codes as a policy leaves them, each row as long as it came, and the suffix of every row if it gives one."""

    codes: Ragged
    suffixes: np.ndarray | None = None


class CollisionPolicy(Protocol):
    """May change last codes, add a suffix, or leave items with equal codes in one bucket."""

    kind: ClassVar[str]
    needs_costs: ClassVar[bool]

    def settle(
        self, codes: Ragged, sizes: Sequence[int], *, old: Settled | None = None, costs: Costs | None = None
    ) -> Settled:
        """What becomes of these rows. `old` rows stand before them and stay as they are.

        `sizes` are the codebook sizes. `costs` gives the costs of every last code for rows of `codes`; None where the
        tokenizer has none.
        """

    def width(self, suffixes: np.ndarray | None) -> int:
        """How many suffix tokens the layout reserves."""


@dataclass(kw_only=True, frozen=True)
class Suffix:
    """A last token that counts inside the group of items with equal codes; 0 for an item alone."""

    kind: ClassVar[str] = "suffix"
    needs_costs: ClassVar[bool] = False
    capacity: int = setting(
        0, "Number of suffix tokens; 0 takes twice what the catalogue needs, so that new items find room.", least=0
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def settle(
        self, codes: Ragged, sizes: Sequence[int], *, old: Settled | None = None, costs: Costs | None = None
    ) -> Settled:
        """The codes as they are, and the running number of every row inside its group, in row order."""
        every = codes if old is None else old.codes.append(codes)
        return Settled(codes, running_number(group_numbers(every))[len(every) - len(codes) :])

    def width(self, suffixes: np.ndarray | None) -> int:
        """The capacity, or room for twice the largest group, rounded up to a power of two."""
        if self.capacity:
            return self.capacity
        need = 1 if suffixes is None or not len(suffixes) else int(suffixes.max()) + 1
        return 1 << (2 * need - 1).bit_length()


@dataclass(kw_only=True, frozen=True)
class Bucket:
    """Items with equal codes share one id."""

    kind: ClassVar[str] = "bucket"
    needs_costs: ClassVar[bool] = False

    def settle(
        self, codes: Ragged, sizes: Sequence[int], *, old: Settled | None = None, costs: Costs | None = None
    ) -> Settled:
        """The codes as they are."""
        return Settled(codes)

    def width(self, suffixes: np.ndarray | None) -> int:
        """No suffix tokens."""
        return 0


@dataclass(kw_only=True, frozen=True)
class Reassign:
    """Colliding items get other last codes; what cannot be told apart shares a bucket.

    `cheapest` solves the assignment exactly under every prefix, so one round suffices and ids are unique wherever a
    prefix has at most as many items as codes. `sinkhorn` is LC-Rec's way: each group of colliding items is balanced by
    itself, for some rounds. Items that are added later have nobody to be balanced with and get the cheapest free code.
    """

    kind: ClassVar[str] = "reassign"
    needs_costs: ClassVar[bool] = True
    how: Literal["cheapest", "sinkhorn"] = setting(
        "cheapest", "How last codes are chosen: at least total cost under a prefix, or balanced in each group."
    )
    rounds: int = setting(20, "Rounds of sinkhorn at most; cheapest needs one.", least=1)
    epsilon: float = setting(0.003, "Smoothness of sinkhorn's plan, for costs that span an interval of 2.", above=0)
    iterations: int = setting(50, "Iterations of sinkhorn within a group.", least=1)

    def __post_init__(self) -> None:
        check_settings(self)

    def settle(
        self, codes: Ragged, sizes: Sequence[int], *, old: Settled | None = None, costs: Costs | None = None
    ) -> Settled:
        """Other last codes for rows that collide with each other or with an old row."""
        if costs is None:
            raise ConfigError(
                "the collision policy 'reassign' needs a tokenizer that gives the costs of last codes",
                hint="use collisions=suffix or collisions=bucket, or a tokenizer with last_costs",
            )
        if old is None and self.how == "sinkhorn":
            return Settled(
                balanced_last_codes(
                    codes, sizes, costs, rounds=self.rounds, epsilon=self.epsilon, iterations=self.iterations
                )
            )
        if old is None:
            return Settled(cheapest_last_codes(codes, sizes, costs))
        fixed = len(old.codes)
        every = cheapest_last_codes(old.codes.append(codes), sizes, costs, fixed=fixed)
        return Settled(every.take(np.arange(fixed, len(every))))

    def width(self, suffixes: np.ndarray | None) -> int:
        """No suffix tokens."""
        return 0


COLLISIONS: dict[str, type] = {c.kind: c for c in (Suffix, Bucket, Reassign)}


def running_number(groups: np.ndarray) -> np.ndarray:
    """0, 1, 2 ... inside every group, in row order."""
    members = Ragged.grouped(np.arange(len(groups)), groups, 0)
    out = np.empty(len(groups), dtype=np.int32)
    out[members.values] = members.positions
    return out
