"""Results of inspecting the ids of a tokenizer: frozen values, with `to_dict` for JSON.

The command line, the HTTP service and Python share them. Items have the user's own ids; depths count from 1.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Titled:
    """An item and its display title."""

    item: str
    title: str


@dataclass(frozen=True)
class IdLine:
    """An item's id, as `capsid tokenizer export` writes it; with confidences if the tokenizer routes.

    `others` have the codes and the tokens of the item's other ids, if it has several.
    """

    item: str
    codes: tuple[int, ...]
    tokens: tuple[int, ...]
    confidences: tuple[float, ...] | None
    others: tuple[dict[str, tuple[int, ...]], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values. Not recursive, to be fast: an export has one line per item."""
        return {name: value for name, value in vars(self).items() if name != "others" or value}


@dataclass(frozen=True)
class SharedPrefix:
    """How many items begin with these codes, the item itself included, and some of the others."""

    codes: tuple[int, ...]
    items: int
    examples: tuple[Titled, ...]


@dataclass(frozen=True)
class Subword:
    """A token of an item: its codes, how many items have it, and how often those occur in training."""

    token: int
    depth: int
    codes: tuple[int, ...]
    merged: bool
    items: int
    taken: int


@dataclass(frozen=True)
class ShownCapsule:
    """A capsule that an item is routed to: its weight, how many ids contain it, and its meaning."""

    code: int
    weight: float
    items: int
    words: tuple[str, ...]
    nearest: tuple[Titled, ...]


@dataclass(frozen=True)
class Residual:
    """The residual of an item after a depth: of the soft mixtures, and of the codes alone."""

    soft: float
    hard: float


@dataclass(frozen=True)
class RoutedDepth:
    """How an item was routed at one depth; capsules with the largest weight come first."""

    depth: int
    code: int
    token: int
    confidence: float
    winner_mass: float
    residual: Residual
    capsules: tuple[ShownCapsule, ...]


@dataclass(frozen=True)
class Stopped:
    """Why an id ends where it does, and the rules that decided."""

    cause: str
    depth: int
    because: str
    rules: dict[str, Any]


@dataclass(frozen=True)
class ItemInspection(IdLine):
    """An item's id, the items that share its first codes, its merges, and how it was routed.

    `unmerged` and `subwords` are None without merges, `depths` and `stopped` if the tokenizer does not route.
    """

    title: str
    prefixes: tuple[SharedPrefix, ...]
    unmerged: tuple[int, ...] | None = None
    subwords: tuple[Subword, ...] | None = None
    depths: tuple[RoutedDepth, ...] | None = None
    stopped: Stopped | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the fields that this tokenizer lacks."""
        optional = ("unmerged", "subwords", "depths", "stopped")
        absent = {name for name in optional if getattr(self, name) is None} | (set() if self.others else {"others"})
        return {name: value for name, value in asdict(self).items() if name not in absent}


@dataclass(frozen=True)
class FacetItem:
    """An item whose weight at one depth is split between two capsules."""

    item: str
    title: str
    codes: tuple[int, ...]
    facets: tuple[ShownCapsule, ...]


@dataclass(frozen=True)
class Facets:
    """Items of two facets at a depth, the most evenly split first."""

    depth: int
    items: tuple[FacetItem, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Shortened:
    """Mean number of tokens per item before and after merging."""

    before: float
    after: float


@dataclass(frozen=True)
class ShownMerge:
    """A merged token: its codes, the strength of the merge, its items, and their popularity tiers."""

    token: int
    depth: int
    codes: tuple[int, ...]
    strength: float
    count: int
    cosine: float
    items: int
    taken: int
    tiers: dict[str, float]
    tokens_before: float
    tokens_after: float
    examples: tuple[Titled, ...]


@dataclass(frozen=True)
class Merges:
    """The number of merges, their effect on lengths, and the merges most frequent in training."""

    count: int
    tokens_an_item: Shortened
    merges: tuple[ShownMerge, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
