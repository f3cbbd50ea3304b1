"""The methods there are. One small file each, values only; this table is how a name finds its recipe."""

from __future__ import annotations

from capsid.errors import ConfigError, nearest
from capsid.recipe import Recipe
from capsid.recipes.capsid import CAPSID
from capsid.recipes.capsid_bpe import CAPSID_BPE
from capsid.recipes.capsid_literal import CAPSID_LITERAL
from capsid.recipes.popularity import POPULARITY
from capsid.recipes.rq_kmeans import RQ_KMEANS
from capsid.recipes.sasrec import SASREC

RECIPES: dict[str, Recipe] = {r.name: r for r in (CAPSID, CAPSID_BPE, CAPSID_LITERAL, RQ_KMEANS, SASREC, POPULARITY)}


def get_recipe(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe {name!r}", hint=nearest(name, RECIPES))
    return RECIPES[name]
