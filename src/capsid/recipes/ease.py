"""EASE: linear weights between items in closed form, no network."""

from __future__ import annotations

from capsid.generate.similar_items import EaseGenerator
from capsid.recipe import Recipe
from capsid.tokenize.atomic import Atomic

EASE = Recipe(
    name="ease",
    about="EASE: linear weights between items in closed form, no network",
    paper="EASE (arXiv 1905.03375)",
    tokenizer=Atomic(),
    generator=EaseGenerator(),
)
