"""Parallel product codes: every code of the next item is predicted at once, and all items are scored."""

from __future__ import annotations

import dataclasses

from capsid.decode.parallel import ParallelScoring
from capsid.encode.defaults import default_encoder
from capsid.generate.parallel import AllCodes, ParallelGenerator
from capsid.ids.collisions import Bucket
from capsid.recipe import Phase, Recipe
from capsid.recipes.long_training import LONG_TRAINING
from capsid.tokenize.product import ProductQuantizer

RPG = Recipe(
    name="rpg",
    about="Product codes predicted in parallel, one head for each; all items scored by the sum of their codes",
    paper="RPG (Hou et al. 2025, arXiv 2506.05781)",
    deviations=(
        "item vectors join text with collaborative vectors, and text vectors are MiniLM's",
        "all items are scored; the paper decodes over a graph of similar items to score fewer",
        "the history is read by distance alone instead of GPT-2",
    ),
    encoder=default_encoder(),
    tokenizer=ProductQuantizer(codebooks=(256,) * 16),
    collisions=Bucket(),
    generator=ParallelGenerator(dropout=0.4, embedding_dropout=0.4, hidden_dropout=0.4),
    objective=(AllCodes(),),
    decoder=ParallelScoring(),
    schedule=(Phase(training=dataclasses.replace(LONG_TRAINING, steps=5_280, equal_targets=True)),),
)
