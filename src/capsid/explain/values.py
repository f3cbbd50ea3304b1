"""The parts of an explanation: scored prefixes by depth, and the influence of each item of the history."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prefix:
    """A scored prefix. `example` is the title of the most popular item below it, `fate` is one of `FATES`."""

    tokens: tuple[int, ...]
    codes: tuple[int, ...]
    score: float
    fate: str
    items: int
    example: str


@dataclass(frozen=True)
class Step:
    """One depth of the search: how many prefixes met which fate, and the best of them."""

    depth: int
    counts: dict[str, int]
    prefixes: tuple[Prefix, ...]


@dataclass(frozen=True)
class ScoreParts:
    """The two parts of a result's score where ids and item vectors are fused: score = ids + vectors.

    `ids` is the log of the softmax over the ids that the search found, `vectors` that over all their items; `cosine` is
    that of the item's vector and the expected one.
    """

    ids: float
    vectors: float
    cosine: float


@dataclass(frozen=True)
class Influence:
    """How much the results' scores fall without an item of the history: a larger fall means more support.

    `results[r]` is the fall of result r, and `steps[r]` is its split over the tokens of the id. Where item vectors are
    fused, `vectors[r]` is what they add to the fall; then falls are of both parts before their softmaxes.
    """

    item: str
    title: str
    mean: float
    results: tuple[float, ...]
    steps: tuple[tuple[float, ...], ...]
    vectors: tuple[float, ...] = ()
