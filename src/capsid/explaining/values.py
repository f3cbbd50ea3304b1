"""What an explanation is made of: prefixes that were weighed, by depth, and the pull of each item of the history."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prefix:
    """A prefix that was weighed. `example` is the most taken item below it (title), `fate` one of `FATES`."""

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
class Influence:
    """How the results' scores fall when an item of the history is left out: the larger, the more it spoke for them.

    `results[r]` is the fall of result r, and `steps[r]` how it is spread over the tokens of its id.
    """

    item: str
    title: str
    mean: float
    results: tuple[float, ...]
    steps: tuple[tuple[float, ...], ...]
