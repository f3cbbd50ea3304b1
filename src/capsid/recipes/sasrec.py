"""SASRec with full cross-entropy: its authors' network over one-token ids."""

from __future__ import annotations

import dataclasses

from capsid.generate.generator import SasRecGenerator
from capsid.generate.next_token import NextToken
from capsid.recipe import Phase, Recipe
from capsid.recipes.long_training import LONG_TRAINING
from capsid.tokenize.atomic import Atomic

SASREC = Recipe(
    name="sasrec",
    about="Self-attention over item ids, every next item against the whole catalogue",
    paper="Kang & McAuley 2018, arXiv 1808.09781; full cross-entropy as in Klenitskiy & Vasilev 2023, arXiv 2309.07602",
    deviations=("full softmax cross-entropy instead of binary cross-entropy with one negative",),
    tokenizer=Atomic(),
    # Small, with strong dropout and long training, as in public code for this data.
    generator=SasRecGenerator(
        layers=2,
        heads=1,
        width=64,
        feedforward=64,
        dropout=0.6,
        embedding_dropout=0.6,
        attention_dropout=0.6,
        hidden_dropout=0.6,
        input_scale=8.0,
        initial="xavier",
        positions_from="end",
        warm_start=False,
    ),
    objective=(NextToken(),),
    schedule=(
        Phase(
            training=dataclasses.replace(
                LONG_TRAINING, steps=5_500, batch_size=512, window=1, learning_rate=5e-4, ema=0.0, patience=20
            )
        ),
    ),
)
