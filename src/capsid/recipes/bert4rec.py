"""BERT4Rec with full cross-entropy: bidirectional attention over one-token ids, trained on masked items."""

from __future__ import annotations

from capsid.generate.generator import MaskedGenerator
from capsid.generate.next_token import NextToken
from capsid.recipe import Phase, Recipe
from capsid.tokenize.atomic import Atomic
from capsid.train.options import Training

BERT4REC = Recipe(
    name="bert4rec",
    about="Bidirectional attention over item ids; masked items are predicted among the whole catalogue",
    paper="Sun et al. 2019, arXiv 1904.06690",
    deviations=(
        "pre-LayerNorm; scores are products with the item embeddings, without the extra layer and the biases",
        "in some sequences only the last item is masked; they are drawn at every step, not added once to the data",
        "16,000 steps of 128 sequences, because a step predicts fewer items than one of sasrec",
    ),
    tokenizer=Atomic(),
    generator=MaskedGenerator(
        layers=2,
        heads=2,
        width=64,
        feedforward=256,
        dropout=0.2,
        embedding_dropout=0.2,
        warm_start=False,
        # The share that the paper found best for short histories (section 4.3, Beauty).
        mask=0.6,
    ),
    objective=(NextToken(),),
    schedule=(
        Phase(training=Training(steps=16_000, batch_size=128, weight_decay=0.01, validate_every=1_000, patience=6)),
    ),
)
