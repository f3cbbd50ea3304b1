"""CapsID ids with the shared generator, merged, with a memory and with second ids; then ablations and the paper's
system.
"""

from __future__ import annotations

import dataclasses

from capsid.decode.mixed import Mixed
from capsid.encode.kinds import default_encoder
from capsid.generate.dense_match import DenseMatch
from capsid.generate.encoder_decoder import EncoderDecoderGenerator
from capsid.generate.generator import TimelineGenerator, TransformerGenerator
from capsid.generate.next_token import NextToken
from capsid.generate.routing_adapters import RoutingAdapters
from capsid.generate.similar_items import EaseGenerator
from capsid.ids.collisions import Bucket
from capsid.ids.reading import ItemByItem
from capsid.memory.memory import Memory
from capsid.recipe import Phase, Recipe
from capsid.recipes.baselines import EASE, LONG_TRAINING, SASREC
from capsid.recipes.rivals import RQ_KMEANS, TIGER_DENSE
from capsid.tokenize.capsules.semantic_bpe import SemanticBPE
from capsid.tokenize.capsules.settings import StageOneTraining
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.tokenize.kinds import IdSystem
from capsid.tokenize.rivals.lookup import Frequency
from capsid.tokenize.rivals.quantisers import ResidualKMeans
from capsid.train.options import Training

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


CAPSID_BPE = dataclasses.replace(
    CAPSID,
    name="capsid-bpe",
    about="The ids of capsid (nothing is trained, ids end at a unique prefix) with frequent neighbouring tokens merged",
    paper="CapsID (arXiv 2605.05096), sections 3.1 to 3.4, and the appendix's details of SemanticBPE",
    deviations=(
        *CAPSID.deviations,
        "tokens are compared by the mean vectors of their items, not by centres, which are near orthogonal",
        "merges are learnt after the capsules, on final ids; the gate is trained on the score and decides",
        "pairs that occur 5 times may be merged, cosine only ranks them; the paper's thresholds leave almost none",
        "more dropout than recipes without merges, chosen by validation",
        "the routing adapters of stage 2 are off (schedule.0.adapt=routing-adapters)",
    ),
    # Thousands of tokens, most of them rare: twice the dropout that is best for small codebooks.
    generator=TimelineGenerator(dropout=0.4, embedding_dropout=0.4),
    merges=SemanticBPE(size=16_384, passes=2, min_count=5, theta=(0.9, -1.0)),
)


CAPSID_STRONG = dataclasses.replace(
    CAPSID_BPE,
    name="capsid-strong",
    about="Like capsid-bpe, with a small generator that trains longer, and a memory of followers and similar items",
    deviations=(
        *CAPSID_BPE.deviations,
        "every merged token has a vector of its own only, and scores are inner products",
        "tokens compete with their siblings in the trie alone (over=children)",
        "followers and neighbours of the last items get bonuses, fitted after training (off: memory=null)",
    ),
    over="children",
    generator=TimelineGenerator(
        width=64,
        feedforward=256,
        dropout=0.6,
        embedding_dropout=0.6,
        hidden_dropout=0.6,
        compose=False,
        cosine_temperature=0.0,
        input_scale=8.0,
    ),
    memory=Memory(),
    schedule=(Phase(training=dataclasses.replace(LONG_TRAINING, steps=5_280, equal_targets=True)),),
)


CAPSID_TWO = dataclasses.replace(
    CAPSID_STRONG,
    name="capsid-two",
    about="Like capsid-strong, with flat k-means ids as second ids: both are read and predicted, probabilities mixed",
    deviations=(*CAPSID_STRONG.deviations, "every item has a second id (other_ids=, decoder=beam: off)"),
    other_ids=(IdSystem(),),
    decoder=Mixed(),
)


CAPSID_DENSE = dataclasses.replace(
    CAPSID,
    name="capsid-dense",
    about="Like capsid, with dense item vectors read with the ids and predicted after them; beams and vectors fused",
    paper="CapsID (arXiv 2605.05096), table on dense patches, with the dense path of COBRA (arXiv 2503.02453)",
    deviations=(
        *CAPSID.deviations,
        "an item's vector is added to its position in the timeline",
        "vectors compare items of the same id, not all items that were found (decoder.among=found: as published)",
    ),
    objective=(NextToken(), DenseMatch()),
    decoder=TIGER_DENSE.decoder,
)


KMEANS_FLAT = dataclasses.replace(
    RQ_KMEANS,
    name="kmeans-flat",
    about="k-means, one large codebook and a suffix; Transformer over items and depths; beam search in the trie",
    paper="A row of the tables of CapsID (arXiv 2605.05096)",
    deviations=(
        "codebook chosen so that about two thirds of Beauty's items collide before the suffix, as in the paper's table",
        *RQ_KMEANS.deviations,
    ),
    tokenizer=ResidualKMeans(codebooks=(4096,), restarts=1),
)


FREQUENCY = Recipe(
    name="frequency",
    about="Ids from the training-count bucket and the rank inside it; Transformer over items and depths; beam search",
    paper="A row of the tables of CapsID (arXiv 2605.05096), which does not define it",
    deviations=("our definition: log-count bucket, then the digits of the rank, so ids do not collide",),
    tokenizer=Frequency(),
    collisions=Bucket(),
    generator=TimelineGenerator(),
    objective=(NextToken(),),
    schedule=(Phase(),),
)


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

CAPSULES = CapsuleTokenizer(
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
)

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
    tokenizer=CAPSULES,
    collisions=Bucket(),
    reading=ItemByItem(every_end=True),
    merges=SemanticBPE(alpha=(0.6, 0.6), spare=True, beside=True),
    generator=TransformerGenerator(dropout=0.1, embedding_dropout=0.1, compose=False),
    objective=(NextToken(),),
    schedule=(Phase(training=STAGE_TWO, adapt=RoutingAdapters(share=1.0)),),
)

CAPSID_INDUSTRIAL = dataclasses.replace(
    CAPSID_PAPER,
    name="capsid-industrial",
    about="The CapsID paper's system as in its industrial run: more capsules per depth and an encoder-decoder",
    deviations=(*CAPSID_PAPER.deviations, "every item of a sequence is a target, so the encoder is causal"),
    tokenizer=dataclasses.replace(CAPSULES, codebooks=(1024,) * 6, dim=96),
    # Appendix A.3: 8 layers, width 512, 8 heads; the width of the feed-forward layers is T5's for this width.
    generator=EncoderDecoderGenerator(
        layers=8, depth_layers=8, heads=8, head_width=64, width=512, feedforward=2048, compose=False
    ),
)

# What `capsid fit` fits if no recipe is named. The decay is the one that validates best in the plan `clean`.
EASE_MEMORY = dataclasses.replace(
    EASE,
    name="ease-memory",
    about="Linear weights between items in closed form, and a memory of followers and similar items; no network",
    encoder=default_encoder(),
    generator=EaseGenerator(decay=0.7),
    memory=Memory(),
)

(_PHASE,) = SASREC.schedule
SASREC_MEMORY = dataclasses.replace(
    SASREC,
    name="sasrec-memory",
    about="SASRec, and beside it a memory: items that followed the last items of a history, and items like them",
    deviations=(*SASREC.deviations, "followers and neighbours of the last items get bonuses, fitted after training"),
    encoder=default_encoder(),
    memory=Memory(),
    # Training ends soon after validation has stopped rising.
    schedule=(dataclasses.replace(_PHASE, training=dataclasses.replace(_PHASE.training, patience=5)),),
)
