"""SASRec with full cross-entropy: the same Transformer over one-token ids."""

from __future__ import annotations

from capsid.generate.generator import TransformerGenerator
from capsid.generate.next_token import NextToken
from capsid.recipe import Phase, Recipe
from capsid.tokenize.atomic import Atomic
from capsid.train.options import Training

SASREC = Recipe(
    name="sasrec",
    about="Self-attention over item ids, every next item against the whole catalogue",
    paper="Kang & McAuley 2018, arXiv 1808.09781; full cross-entropy as in Klenitskiy & Vasilev 2023, arXiv 2309.07602",
    deviations=(
        "full softmax cross-entropy instead of binary cross-entropy with one negative",
        "GELU, pre-LayerNorm and feed-forward of four times the width, as our generator has them",
    ),
    tokenizer=Atomic(),
    generator=TransformerGenerator(
        layers=2, heads=2, width=64, feedforward=256, dropout=0.5, embedding_dropout=0.5, warm_start=False
    ),
    objective=(NextToken(),),
    schedule=(
        Phase(training=Training(steps=8_000, batch_size=128, weight_decay=0.01, validate_every=500, patience=6)),
    ),
)
