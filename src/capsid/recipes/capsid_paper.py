"""The whole system of the CapsID paper: trained capsules, confidence stops, SemanticBPE, its generator."""

from __future__ import annotations

import dataclasses

from capsid.encode.kinds import default_encoder
from capsid.generate.generator import TransformerGenerator
from capsid.generate.next_token import NextToken
from capsid.generate.routing_adapters import RoutingAdapters
from capsid.ids.collisions import Bucket
from capsid.ids.reading import ItemByItem
from capsid.recipe import Phase, Recipe
from capsid.tokenize.capsules.semantic_bpe import SemanticBPE
from capsid.tokenize.capsules.settings import StageOneTraining
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.train.options import Training

# Appendix A.3: AdamW, cosine decay, weight decay 1e-5, patience 10; no warm-up, clipping or averaging is named.
STAGE_TWO = Training(
    unit="epochs",
    steps=200,
    batch_size=256,
    window=1,
    learning_rate=3e-4,
    final_rate=0.0,
    warmup=0.0,
    weight_decay=1e-5,
    beta2=0.999,
    clip=1_000.0,
    ema=0.0,
    validate_every=1,
    patience=10,
    validation_users=2_000,
)
STAGE_ONE = dataclasses.replace(STAGE_TWO, steps=100, learning_rate=1e-3, validate_every=5, patience_from=0.5)

CAPSID_PAPER = Recipe(
    name="capsid-paper",
    about="The CapsID paper's own system: trained capsules, ids that end by confidence, SemanticBPE, its Transformer",
    paper="CapsID (arXiv 2605.05096), sections 3.1 to 3.4 and appendix A",
    deviations=(
        "capsules start from the data; from a random start routing weights stay uniform and then collapse",
        "votes are normalised in the agreement, as appendix A.1 asks, with a learnt temperature, which Eq. 5 lacks",
        "a learnt matrix maps the 64 numbers of a capsule output to the 128 of a residual, which Eq. 7 leaves open",
        "the spread loss, which the paper does not define, is that of matrix capsules with the winner as the label",
        "a balance loss keeps capsules in use",
        "weights are selected by the recall of plain counts over the ids, which is taken every 5 epochs of stage 1",
        "a token's meaning is the mean vector of its items: centres are nearly orthogonal (12 of 2,813 pairs on Beauty"
        " above .55), so their cosine would exclude all pairs alike",
        "at most 256 merges: without a limit the score, and with it alpha, chooses nothing",
        "adapters reach the loss through inputs that keep their values, 256 items per step; ids follow once, at the"
        " end, at most 5 % of them, because the generator was trained on the old ones",
    ),
    encoder=default_encoder(),
    tokenizer=CapsuleTokenizer(
        codebooks=(256,) * 6,
        dim=64,
        poses="full",
        rounds=3,
        routing="unit",
        winner_mass=(0.3,),
        confidence=0.82,
        residual=0.08,
        max_sharing=0,
        rivals="sum",
        margin=(0.2, 0.3, 0.6, 0.9, 0.3),
        codes_weight=0.0,
        training=StageOneTraining.of(STAGE_ONE),
    ),
    collisions=Bucket(),
    reading=ItemByItem(every_end=True),
    merges=SemanticBPE(alpha=(0.6, 0.6), spare=True, beside=True),
    generator=TransformerGenerator(dropout=0.1, embedding_dropout=0.1, compose=False),
    objective=(NextToken(),),
    schedule=(Phase(training=STAGE_TWO, adapt=RoutingAdapters(share=1.0)),),
)
