"""CapsID ids without merges, with the shared generator."""

from __future__ import annotations

from capsid.encode.defaults import default_encoder
from capsid.generate.generator import TimelineGenerator
from capsid.generate.next_token import NextToken
from capsid.ids.collisions import Bucket
from capsid.recipe import Phase, Recipe
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer

CAPSID = Recipe(
    name="capsid",
    about="CapsID ids in closed form: nothing is trained, and ids end at a unique prefix, after at most 4 codes",
    paper="CapsID (arXiv 2605.05096), sections 3.1 to 3.4",
    deviations=(
        "capsules start from the data and are not trained; one pose matrix per depth (capsid-paper trains full ones)",
        "routing subtracts mixtures of fixed outputs, not of input-dependent ones",
        "temperatures are calibrated to a winner mass that rises with depth",
        "an id ends where no other item shares it; confidence and residual norm are used only if set",
        "the generator reads one position per item and scores by cosine (generator=transformer: as in the paper)",
        "it learns how likely users are to return to an item (generator.repeats=false: off)",
    ),
    encoder=default_encoder(),
    tokenizer=CapsuleTokenizer(),
    collisions=Bucket(),
    generator=TimelineGenerator(),
    objective=(NextToken(),),
    schedule=(Phase(),),
)
