"""The most taken items for everybody: the floor of every table."""

from __future__ import annotations

from capsid.generate.generator import PopularityGenerator
from capsid.recipe import Recipe
from capsid.tokenize.atomic import Atomic

POPULARITY = Recipe(
    name="popularity",
    about="The items taken most often in training, the same for everybody",
    tokenizer=Atomic(),
    generator=PopularityGenerator(),
)
