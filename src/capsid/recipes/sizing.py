"""Adapts a recipe's sizes to the data: recipes are written for tens of thousands of items and users, a shop may have
180.

A pure function from a recipe to a recipe, with a reason for every change. Sizes only become smaller, a setting that the
user gave is never changed, and nothing changes with more than about 6,400 users and 8,192 items. Knows no files and
fits nothing.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from capsid.data.dataset import Dataset
from capsid.recipe import Recipe
from capsid.train.options import Training

# Training is as the recipe says from this many rows (histories or items) on; fewer rows get smaller batches, so that an
# epoch keeps its number of steps, and at most as many epochs as this many rows would get.
HISTORIES, ITEMS = 6_400, 4_096
SMALLEST_BATCH = 8
# Few rows are soon overfitted: validations are this frequent, so that the best weights are not missed.
VALIDATIONS = 15
# A depth of several has this many codes times the square root of the number of items: 256 for 12,000 items.
CODES_PER_ROOT = 2.0
# A codebook that stands alone has at most half as many codes as there are items; merged tokens at most twice as many.
ITEMS_PER_CODE = 2
MERGES_PER_ITEM = 2
# A tree that divides a catalogue evenly leaves about this many items to its last level.
ITEMS_PER_LEAF = 8


@dataclass(frozen=True)
class DataSize:
    """What sizes depend on. It is the same for every split, so that runs with and without held-out items agree."""

    users: int
    items: int
    interactions: int

    @classmethod
    def of(cls, dataset: Dataset) -> DataSize:
        return cls(len(dataset.users), len(dataset.items), dataset.interactions)

    def histories(self, longest: int) -> int:
        """How many training sequences there are, about: long ones are cut into pieces."""
        return max(self.users, math.ceil(self.interactions / max(longest, 1)))

    def __str__(self) -> str:
        return f"{self.items:,} items and {self.interactions:,} interactions of {self.users:,} users"


@dataclass(frozen=True)
class Change:
    """A setting that was made smaller, and why."""

    path: str
    before: Any
    after: Any
    reason: str

    @property
    def text(self) -> str:
        """As `--set` takes it."""
        return f"{self.path}={_text(self.after)}"


@dataclass(frozen=True)
class Sizing:
    """A recipe with the sizes that suit some data, and what was changed to get there."""

    recipe: Recipe
    size: DataSize
    changes: tuple[Change, ...]

    @property
    def of_ids(self) -> Sizing:
        """The same without the changes that only matter after ids are made."""
        return dataclasses.replace(self, changes=tuple(c for c in self.changes if not c.path.startswith("schedule.")))

    def __str__(self) -> str:
        """One line; empty if nothing was changed."""
        if not self.changes:
            return ""
        told = ", ".join(f"{c.path} {_text(c.before)} -> {_text(c.after)}" for c in self.changes)
        return f"sizes that suit {self.size}: {told}"


def sized(recipe: Recipe, size: DataSize, named: Collection[str] = ()) -> Sizing:
    """The recipe with sizes for this much data. Settings at the paths in `named` stay as they are."""
    changes: list[Change] = []
    for wanted in _wanted(recipe, size, frozenset(named)):
        changes += [wanted]
        recipe = recipe.with_settings([wanted.text])
    return Sizing(recipe, size, tuple(changes))


def named_in(settings: Iterable[str]) -> frozenset[str]:
    """The paths of `part.field=value` texts."""
    return frozenset(text.partition("=")[0].strip() for text in settings)


def _wanted(recipe: Recipe, size: DataSize, named: frozenset[str]) -> Iterator[Change]:
    histories = size.histories(getattr(recipe.generator, "history", 1))
    for path, part in _parts(recipe, ""):
        # Tokenizers of other ids are sized like the first one.
        top = re.sub(r"^other_ids\.\d+\.", "", path).partition(".")[0]
        if isinstance(part, Training) and top in ("encoder", "schedule"):
            yield from _training(path, part, histories, HISTORIES, "histories", named)
        elif isinstance(part, Training) and top == "tokenizer":
            yield from _training(path, part, size.items, ITEMS, "items", named)
        elif top == "tokenizer" and hasattr(part, "codebooks"):
            codebooks = _codebooks(part.codebooks, size.items)
            yield from _change(f"{path}.codebooks", part.codebooks, codebooks, f"{size.items:,} items", named)
        elif top == "tokenizer" and hasattr(part, "codebook"):
            codebook = min(part.codebook, _codes(size.items))
            yield from _change(f"{path}.codebook", part.codebook, codebook, f"{size.items:,} items", named)
        elif top == "tokenizer" and hasattr(part, "branching"):
            branching = _branching(part.branching, size.items)
            yield from _change(f"{path}.branching", part.branching, branching, f"{size.items:,} items", named)
        elif path == "merges" and hasattr(part, "size"):
            merges = min(part.size, MERGES_PER_ITEM * max(size.items, 1))
            yield from _change("merges.size", part.size, merges, f"{size.items:,} items", named)


def _training(
    path: str, training: Training, rows: int, enough: int, noun: str, named: frozenset[str]
) -> Iterator[Change]:
    """Batch, steps and validations for few rows; every setting follows from the ones before it as they will be."""
    if rows >= enough or not rows or not training.steps:
        return
    reason = f"{rows:,} {noun}"
    least = min(SMALLEST_BATCH, training.batch_size)
    batch = min(training.batch_size, max(least, _power_of_two(training.batch_size * rows / enough)))
    change = list(_change(f"{path}.batch_size", training.batch_size, batch, reason, named))
    batch = batch if change else training.batch_size
    yield from change
    if training.unit == "epochs":
        return
    # At most as many epochs as `enough` rows would get.
    steps = min(training.steps, _rounded(training.steps * training.batch_size * rows / (enough * batch)))
    change = list(_change(f"{path}.steps", training.steps, steps, reason, named))
    steps = steps if change else training.steps
    yield from change
    every = min(training.validate_every, math.ceil(steps / VALIDATIONS))
    yield from _change(f"{path}.validate_every", training.validate_every, every, reason, named)


def _codebooks(codebooks: tuple[int, ...], items: int) -> tuple[int, ...]:
    most = _power_of_two(items / ITEMS_PER_CODE) if len(codebooks) == 1 else _codes(items)
    return tuple(min(size, most) for size in codebooks)


def _codes(items: int) -> int:
    """Of one codebook among several."""
    return _power_of_two(CODES_PER_ROOT * math.sqrt(items))


def _branching(branching: tuple[int, ...], items: int) -> tuple[int, ...]:
    """All levels narrower by one factor, so that the parents of the last level keep their number of items."""
    leaves = math.prod(branching)
    factor = min(1.0, items / (ITEMS_PER_LEAF * leaves)) ** (1 / max(len(branching), 1))
    return tuple(max(2, math.ceil(width * factor)) if width > 2 else width for width in branching)


def _change(path: str, before: Any, after: Any, reason: str, named: frozenset[str]) -> Iterator[Change]:
    if after != before and path not in named:
        yield Change(path, before, after, reason)


def _parts(part: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every part inside a recipe with its dotted path."""
    if isinstance(part, tuple):
        for number, inner in enumerate(part):
            yield from _parts(inner, f"{path}.{number}")
    elif dataclasses.is_dataclass(part):
        if path:
            yield path, part
        for field in dataclasses.fields(part):
            yield from _parts(getattr(part, field.name), f"{path}.{field.name}" if path else field.name)


def _power_of_two(number: float) -> int:
    """The smallest power of two that is not below the number."""
    return 2 ** max(0, math.ceil(math.log2(max(number, 1))))


def _rounded(number: float) -> int:
    """Two digits: nobody needs 1,862 steps."""
    digits = max(0, len(str(max(int(number), 1))) - 2)
    return max(1, math.ceil(number / 10**digits) * 10**digits)


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
