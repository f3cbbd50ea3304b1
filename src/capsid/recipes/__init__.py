"""All recipes by name. Each recipe is a small file that contains only values.

Lists and tables use this order: methods without ids, simple ids, published methods, CapsID.
"""

from __future__ import annotations

from capsid.base.installed import RECIPES as GROUP
from capsid.base.installed import installed_names, installed_recipe
from capsid.errors import ConfigError, nearest
from capsid.recipe import Recipe
from capsid.recipes.baselines import BERT4REC, EASE, ITEM_KNN, MEMORY, POPULARITY, SASREC, TEXT_KNN, VECTOR_KNN
from capsid.recipes.capsid_paper import CAPSID_PAPER
from capsid.recipes.ours import CAPSID, CAPSID_BPE, CAPSID_DENSE, CAPSID_STRONG, CAPSID_TWO, FREQUENCY, KMEANS_FLAT
from capsid.recipes.rivals import (
    ACTIONPIECE,
    ADA_SID,
    COBRA,
    DIGER,
    ETEGREC,
    LC_REC,
    LETTER,
    RESID,
    RPG,
    RQ_KMEANS,
    SA2CRQ,
    TIGER,
    TIGER_DENSE,
    TIGER_TEXT,
    UNIREC_COA,
)

RECIPES: dict[str, Recipe] = {
    r.name: r
    for r in (
        POPULARITY,
        MEMORY,
        ITEM_KNN,
        EASE,
        TEXT_KNN,
        VECTOR_KNN,
        SASREC,
        BERT4REC,
        FREQUENCY,
        KMEANS_FLAT,
        RQ_KMEANS,
        TIGER,
        TIGER_TEXT,
        TIGER_DENSE,
        LC_REC,
        LETTER,
        ETEGREC,
        ADA_SID,
        ACTIONPIECE,
        DIGER,
        SA2CRQ,
        RESID,
        COBRA,
        RPG,
        UNIREC_COA,
        CAPSID,
        CAPSID_DENSE,
        CAPSID_BPE,
        CAPSID_STRONG,
        CAPSID_TWO,
        CAPSID_PAPER,
    )
}


def get_recipe(name: str) -> Recipe:
    """The recipe of that name: built in, or from an installed package."""
    if name in RECIPES:
        return RECIPES[name]
    found = installed_recipe(name)
    if found is None:
        raise ConfigError(f"there is no recipe {name!r}", hint=nearest(name, (*RECIPES, *installed_names(GROUP))))
    if not isinstance(found, Recipe) or found.name != name:
        raise ConfigError(f"the entry point {name!r} of {GROUP} must name a Recipe of that name, got {found!r}")
    return found


def all_recipes() -> list[Recipe]:
    """The built-in recipes, then those of installed packages."""
    others = [name for name in installed_names(GROUP) if name not in RECIPES]
    return [*RECIPES.values(), *map(get_recipe, others)]
