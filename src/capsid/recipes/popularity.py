"""The most popular items for every user: the baseline of every table."""

from __future__ import annotations

from capsid.generate.generator import PopularityGenerator
from capsid.recipe import Recipe
from capsid.tokenize.atomic import Atomic

POPULARITY = Recipe(
    name="popularity",
    about="The items with the most training interactions, the same for every user",
    tokenizer=Atomic(),
    generator=PopularityGenerator(),
)
