"""Items that users of the history's items took too: co-occurrence in training histories, no network."""

from __future__ import annotations

from capsid.generate.similar_items import ItemKnnGenerator
from capsid.recipe import Recipe
from capsid.tokenize.atomic import Atomic

ITEM_KNN = Recipe(
    name="item-knn",
    about="Items that users of the history's items took too: co-occurrence in training histories, no network",
    paper="Item-based collaborative filtering (Sarwar et al. 2001)",
    tokenizer=Atomic(),
    generator=ItemKnnGenerator(),
)
