"""SASRec with full cross-entropy: its authors' network over one-token ids."""

from __future__ import annotations

from capsid.generate.generator import SasRecGenerator
from capsid.generate.next_token import NextToken
from capsid.recipe import Phase, Recipe
from capsid.tokenize.atomic import Atomic
from capsid.train.options import Training

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
            training=Training(
                steps=5_500,
                batch_size=512,
                window=1,
                learning_rate=5e-4,
                final_rate=1.0,
                warmup=0.0,
                weight_decay=0.0,
                beta2=0.999,
                # Never reached, so gradients are not clipped.
                clip=1_000.0,
                ema=0.0,
                validate_every=440,
                patience=20,
                validation_users=1_000_000,
                select="ndcg@10",
                select_filtered=True,
            )
        ),
    ),
)
