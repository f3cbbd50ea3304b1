"""BERT4Rec with full cross-entropy: bidirectional attention over one-token ids, trained on masked items."""

from __future__ import annotations

import dataclasses

from capsid.data.augment import Augment
from capsid.generate.generator import MaskedGenerator
from capsid.generate.next_token import NextToken
from capsid.recipe import Phase, Recipe
from capsid.recipes.long_training import LONG_TRAINING
from capsid.tokenize.atomic import Atomic

BERT4REC = Recipe(
    name="bert4rec",
    about="Bidirectional attention over item ids; masked items are predicted among the whole catalogue",
    paper="Sun et al. 2019, arXiv 1904.06690",
    deviations=(
        "pre-LayerNorm; scores are cosines with the item embeddings, without the extra layer and the biases",
        "in half of the sequences, drawn at every step, only the last item is masked",
        "sequences are cropped at random, so that other items are the last one",
        "30 % of the items are masked instead of 60 %, and dropout is higher: chosen by validation",
    ),
    tokenizer=Atomic(),
    generator=MaskedGenerator(
        layers=2,
        heads=2,
        width=64,
        feedforward=256,
        dropout=0.3,
        embedding_dropout=0.3,
        hidden_dropout=0.3,
        cosine_temperature=0.06,
        initial="xavier",
        positions_from="end",
        warm_start=False,
        mask=0.3,
        only_last=0.5,
    ),
    objective=(NextToken(),),
    schedule=(Phase(augment=Augment(crop=0.8), training=dataclasses.replace(LONG_TRAINING, steps=7_040)),),
)
