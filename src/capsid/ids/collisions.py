"""What to do when several items get the same codes. Each policy is a value; a recipe names one.

`suffix` is TIGER's answer (Rajput et al. 2023, section 3.1): one more token that counts inside the group.
`bucket` lets items share an id; the ranking expands the bucket (methods 6.9). Neither looks at vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from capsid.ids.order import group_numbers
from capsid.ragged import Ragged


@dataclass(kw_only=True, frozen=True)
class Suffix:
    """A last token that counts inside the group of items with equal codes; 0 for an item alone."""

    kind: ClassVar[str] = "suffix"
    capacity: int = 0
    """Number of suffix tokens; 0 takes twice what the catalogue needs, so that new items find room."""

    def suffixes(self, codes: Ragged) -> np.ndarray | None:
        """Running number of every row inside its group, in row order. Old rows keep theirs when rows are appended."""
        return running_number(group_numbers(codes))

    def width(self, suffixes: np.ndarray | None) -> int:
        """How many suffix tokens the layout reserves."""
        if self.capacity:
            return self.capacity
        need = 1 if suffixes is None or not len(suffixes) else int(suffixes.max()) + 1
        return 1 << (2 * need - 1).bit_length()


@dataclass(kw_only=True, frozen=True)
class Bucket:
    """Items with equal codes share one id."""

    kind: ClassVar[str] = "bucket"

    def suffixes(self, codes: Ragged) -> np.ndarray | None:
        """None: nothing is added."""
        return None

    def width(self, suffixes: np.ndarray | None) -> int:
        """No suffix tokens."""
        return 0


CollisionPolicy = Suffix | Bucket
COLLISIONS: dict[str, type] = {c.kind: c for c in (Suffix, Bucket)}


def running_number(groups: np.ndarray) -> np.ndarray:
    """0, 1, 2 ... inside every group, in row order."""
    members = Ragged.grouped(np.arange(len(groups)), groups, 0)
    out = np.empty(len(groups), dtype=np.int32)
    out[members.values] = members.positions
    return out
