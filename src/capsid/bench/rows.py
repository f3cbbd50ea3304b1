"""Which rows the tables show, in which order, and which of them may be compared.

Read from the recipes, the plan and the paper's tables, so that a new recipe needs no entry here. Knows no results.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from capsid.base.config import fingerprint
from capsid.bench.paper import paper
from capsid.bench.plans import read_plan
from capsid.decode.mixed import Ensemble
from capsid.encode.joined import Views
from capsid.encode.kinds import default_encoder
from capsid.recipe import Recipe
from capsid.recipes import RECIPES
from capsid.recipes.ours import CAPSID_BPE
from capsid.tokenize.rivals.actionpiece import Pieces
from capsid.tokenize.rivals.lookup import Atomic

# The full system, which the tables compare with everything else; and the method that costs are relative to.
FULL = CAPSID_BPE.name
BASELINE = "tiger"


@cache
def planned() -> dict[str, tuple[str, Recipe]]:
    """The method and the recipe behind every label of the plan `main`; methods that are not recipes are left out."""
    cells = [c for c in read_plan("main").cells if c.method in RECIPES]
    return {c.label: (c.method, RECIPES[c.method].with_settings(c.settings)) for c in cells}


def recipe_of(label: str) -> Recipe | None:
    """The recipe behind a label; None for a method of the paper that is not a recipe."""
    return planned()[label][1] if label in planned() else RECIPES.get(label)


def has_ids(label: str) -> bool:
    """Whether the ids are semantic, unlike one token per item."""
    recipe = recipe_of(label)
    return recipe is None or not isinstance(recipe.tokenizer, Atomic)


def with_own_ids() -> list[str]:
    """The planned rows with ids that no row before them has: one for each way to make ids."""
    first: dict[str, str] = {}
    for label, (_, recipe) in planned().items():
        if has_ids(label):
            parts = (recipe.encoder, recipe.tokenizer, recipe.collisions, recipe.merges, *recipe.other_ids)
            first.setdefault(fingerprint(*(part for part in parts if part is not None)), label)
    return list(first.values())


def comparable(label: str) -> bool:
    """Whether a row may be marked best of its column: it has ids, and the same input and budget as the other rows."""
    recipe = recipe_of(label)
    if recipe is None:
        return label in paper()["main"]
    method = planned()[label][0] if label in planned() else label
    # Other views are a method's own; the vectors that ids are made from must be those of all rows.
    encoder = recipe.encoder.item if isinstance(recipe.encoder, Views) else recipe.encoder
    shared_input = encoder is None or encoder == default_encoder()
    return has_ids(label) and shared_input and recipe.schedule == RECIPES[method].schedule


# What the marks of `mark_of` say.
MARKS = {
    "†": "dense vectors or attributes beside ids",
    "‡": "searches several readings of a history, so a recommendation costs several times as much",
    "§": "fewer tokens than published (8,192 instead of 40,000), and one target per sequence and step",
}


def mark_of(label: str) -> str:
    """Signs for what sets a row apart from the others; `MARKS` explains them."""
    recipe, beside = recipe_of(label), label in paper()["beside-ids"]["methods"]
    if recipe is None:
        return "†" if beside else ""
    several = isinstance(recipe.decoder, Ensemble) and recipe.decoder.times > 1
    signs = (("†", beside or recipe.dense is not None), ("‡", several), ("§", isinstance(recipe.merges, Pieces)))
    return "".join(sign for sign, holds in signs if holds)


def in_order(labels: Iterable[str]) -> list[str]:
    """The labels without repeats, in the order of all tables; labels in neither plan nor paper come last."""
    known = {label: place for place, label in enumerate(_order())}
    return sorted(dict.fromkeys(labels), key=lambda label: known.get(label, len(known)))


def main_rows() -> list[str]:
    """The rows of the main table whether they were run or not: methods without ids, those of the paper (also on input
    of their own), and all that may be compared."""
    theirs = paper()["main"]
    labels = {**planned(), **theirs}
    return in_order(label for label in labels if comparable(label) or not has_ids(label) or label in theirs)


@cache
def _order() -> tuple[str, ...]:
    """Recipes in their own order, each followed by the plan's variants of it; the paper's other methods stand before
    the recipe that its table has next."""
    out: dict[str, None] = {}
    theirs = list(paper()["main"])
    for name in RECIPES:
        if name in theirs:
            out |= dict.fromkeys(label for label in theirs[: theirs.index(name)] if label not in RECIPES)
        out[name] = None
        out |= dict.fromkeys(label for label, (method, _) in planned().items() if method == name)
    return (*out, *(label for label in theirs if label not in out))
