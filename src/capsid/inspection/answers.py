"""What the ids of a tokenizer answer when they are asked: frozen values, with `to_dict` for JSON.

The same on the command line, over HTTP and in Python. Items are named by the user's own ids; depths count from 1.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Titled:
    """An item and what to show a person for it."""

    item: str
    title: str


@dataclass(frozen=True)
class IdLine:
    """An item's id, as `capsid tokenizer export` writes it; confidences where the tokenizer routes."""

    item: str
    codes: tuple[int, ...]
    tokens: tuple[int, ...]
    confidences: tuple[float, ...] | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values; of flat ones only, because an export has a line for every item."""
        return dict(vars(self))


@dataclass(frozen=True)
class SharedPrefix:
    """How many items begin with these codes, the item itself included, and some of the others."""

    codes: tuple[int, ...]
    items: int
    examples: tuple[Titled, ...]


@dataclass(frozen=True)
class Subword:
    """A token of an item: what it stands for, how many items have it, and how often training took those."""

    token: int
    depth: int
    codes: tuple[int, ...]
    merged: bool
    items: int
    taken: int


@dataclass(frozen=True)
class ShownCapsule:
    """A capsule that an item is routed to: its weight, how many ids carry it, and what it stands for."""

    code: int
    weight: float
    items: int
    words: tuple[str, ...]
    nearest: tuple[Titled, ...]


@dataclass(frozen=True)
class Residual:
    """What is left of an item after a depth: by mixtures, and by the codes alone."""

    soft: float
    hard: float


@dataclass(frozen=True)
class RoutedDepth:
    """One depth of an item's way through the capsules, the strongest of them first."""

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
    """An item's id, who shares its first codes, what was merged, and how it was routed.

    `unmerged` and `subwords` are None without merges, `depths` and `stopped` for a tokenizer that does not route.
    """

    title: str
    prefixes: tuple[SharedPrefix, ...]
    unmerged: tuple[int, ...] | None = None
    subwords: tuple[Subword, ...] | None = None
    depths: tuple[RoutedDepth, ...] | None = None
    stopped: Stopped | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without what this tokenizer has not."""
        absent = {name for name in ("unmerged", "subwords", "depths", "stopped") if getattr(self, name) is None}
        return {name: value for name, value in asdict(self).items() if name not in absent}


@dataclass(frozen=True)
class FacetItem:
    """An item whose weight at one depth lies on two capsules."""

    item: str
    title: str
    codes: tuple[int, ...]
    facets: tuple[ShownCapsule, ...]


@dataclass(frozen=True)
class Facets:
    """Items between two meanings at a depth, the most divided first."""

    depth: int
    items: tuple[FacetItem, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Shortened:
    """Mean number of tokens per item before and after merging."""

    before: float
    after: float


@dataclass(frozen=True)
class ShownMerge:
    """A merged token: its codes, how firmly it was merged, who carries it, and by which tiers."""

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
    """How many merges there are, what they did to lengths, and those that training met most often."""

    count: int
    tokens_an_item: Shortened
    merges: tuple[ShownMerge, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)
