"""All recipes by name. Each recipe is a value.

Lists and tables use this order: methods without ids, simple ids, published methods, CapsID.
"""

from __future__ import annotations

from capsid.base.config import RECIPES as GROUP
from capsid.base.config import installed_names, installed_recipe
from capsid.errors import ConfigError, nearest
from capsid.recipe import Recipe
from capsid.recipes import baselines, ours, rivals

RECIPES: dict[str, Recipe] = {
    r.name: r
    for r in (
        baselines.POPULARITY,
        baselines.MEMORY,
        baselines.ID_ORDER,
        baselines.ITEM_KNN,
        baselines.EASE,
        ours.EASE_MEMORY,
        baselines.TEXT_KNN,
        baselines.VECTOR_KNN,
        baselines.SASREC,
        ours.SASREC_MEMORY,
        baselines.BERT4REC,
        ours.FREQUENCY,
        ours.KMEANS_FLAT,
        rivals.RQ_KMEANS,
        rivals.TIGER,
        rivals.TIGER_TEXT,
        rivals.TIGER_DENSE,
        rivals.LC_REC,
        rivals.LETTER,
        rivals.ETEGREC,
        rivals.ADA_SID,
        rivals.ACTIONPIECE,
        rivals.DIGER,
        rivals.SA2CRQ,
        rivals.RESID,
        rivals.COBRA,
        rivals.RPG,
        rivals.UNIREC_COA,
        ours.CAPSID,
        ours.CAPSID_DENSE,
        ours.CAPSID_BPE,
        ours.CAPSID_STRONG,
        ours.CAPSID_TWO,
        ours.CAPSID_PAPER,
        ours.CAPSID_INDUSTRIAL,
    )
}


# What is fitted if no recipe is named (docs/recipes.md#the-recommended-recipe).
RECOMMENDED = ours.EASE_MEMORY.name


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
