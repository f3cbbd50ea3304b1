"""All recipes by name. Each recipe is a small file that contains only values.

Lists and tables use this order: methods without ids, simple ids, published methods, CapsID.
"""

from __future__ import annotations

from capsid.base.config import RECIPES as GROUP
from capsid.base.config import installed_names, installed_recipe
from capsid.errors import ConfigError, nearest
from capsid.recipe import Recipe
from capsid.recipes.actionpiece import ACTIONPIECE
from capsid.recipes.ada_sid import ADA_SID
from capsid.recipes.bert4rec import BERT4REC
from capsid.recipes.capsid import CAPSID
from capsid.recipes.capsid_bpe import CAPSID_BPE
from capsid.recipes.capsid_dense import CAPSID_DENSE
from capsid.recipes.capsid_industrial import CAPSID_INDUSTRIAL
from capsid.recipes.capsid_paper import CAPSID_PAPER
from capsid.recipes.capsid_strong import CAPSID_STRONG
from capsid.recipes.capsid_two import CAPSID_TWO
from capsid.recipes.cobra import COBRA
from capsid.recipes.diger import DIGER
from capsid.recipes.ease import EASE
from capsid.recipes.ease_memory import EASE_MEMORY
from capsid.recipes.etegrec import ETEGREC
from capsid.recipes.frequency import FREQUENCY
from capsid.recipes.id_order import ID_ORDER
from capsid.recipes.item_knn import ITEM_KNN
from capsid.recipes.kmeans_flat import KMEANS_FLAT
from capsid.recipes.lc_rec import LC_REC
from capsid.recipes.letter import LETTER
from capsid.recipes.memory import MEMORY
from capsid.recipes.popularity import POPULARITY
from capsid.recipes.resid import RESID
from capsid.recipes.rpg import RPG
from capsid.recipes.rq_kmeans import RQ_KMEANS
from capsid.recipes.sa2crq import SA2CRQ
from capsid.recipes.sasrec import SASREC
from capsid.recipes.sasrec_memory import SASREC_MEMORY
from capsid.recipes.text_knn import TEXT_KNN
from capsid.recipes.tiger import TIGER
from capsid.recipes.tiger_dense import TIGER_DENSE
from capsid.recipes.tiger_text import TIGER_TEXT
from capsid.recipes.unirec_coa import UNIREC_COA
from capsid.recipes.vector_knn import VECTOR_KNN

RECIPES: dict[str, Recipe] = {
    r.name: r
    for r in (
        POPULARITY,
        MEMORY,
        ID_ORDER,
        ITEM_KNN,
        EASE,
        EASE_MEMORY,
        TEXT_KNN,
        VECTOR_KNN,
        SASREC,
        SASREC_MEMORY,
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
        CAPSID_INDUSTRIAL,
    )
}


# What is fitted if no recipe is named (docs/recipes.md#the-recommended-recipe).
RECOMMENDED = EASE_MEMORY.name


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
