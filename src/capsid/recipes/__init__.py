"""The methods there are. One small file each, values only; this table is how a name finds its recipe.

Lists and tables keep its order: methods without ids, simple ids, other people's methods, our own.
"""

from __future__ import annotations

from capsid.errors import ConfigError, nearest
from capsid.recipe import Recipe
from capsid.recipes.bert4rec import BERT4REC
from capsid.recipes.capsid import CAPSID
from capsid.recipes.capsid_bpe import CAPSID_BPE
from capsid.recipes.capsid_literal import CAPSID_LITERAL
from capsid.recipes.frequency import FREQUENCY
from capsid.recipes.kmeans_flat import KMEANS_FLAT
from capsid.recipes.popularity import POPULARITY
from capsid.recipes.rq_kmeans import RQ_KMEANS
from capsid.recipes.sasrec import SASREC
from capsid.recipes.tiger import TIGER
from capsid.recipes.tiger_text import TIGER_TEXT

RECIPES: dict[str, Recipe] = {
    r.name: r
    for r in (
        POPULARITY,
        SASREC,
        BERT4REC,
        FREQUENCY,
        KMEANS_FLAT,
        RQ_KMEANS,
        TIGER,
        TIGER_TEXT,
        CAPSID,
        CAPSID_BPE,
        CAPSID_LITERAL,
    )
}


def get_recipe(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe {name!r}", hint=nearest(name, RECIPES))
    return RECIPES[name]
