"""Methods without semantic ids: popularity, memory, neighbours, EASE, SASRec, BERT4Rec."""

from __future__ import annotations

import dataclasses

from capsid.data.augment import Augment
from capsid.encode.kinds import default_encoder
from capsid.encode.text import TextEncoder
from capsid.generate.generator import MaskedGenerator, PopularityGenerator, SasRecGenerator
from capsid.generate.next_token import NextToken
from capsid.generate.similar_items import EaseGenerator, ItemKnnGenerator, VectorKnnGenerator
from capsid.memory.memory import Memory
from capsid.recipe import Phase, Recipe
from capsid.tokenize.rivals.lookup import Atomic
from capsid.train.options import Training

LONG_TRAINING = Training(
    batch_size=256,
    final_rate=1.0,
    warmup=0.0,
    weight_decay=0.0,
    beta2=0.999,
    # Never reached, so gradients are not clipped.
    clip=1_000.0,
    ema=0.995,
    validate_every=440,
    patience=5,
    validation_users=1_000_000,
    select="ndcg@10",
    select_filtered=True,
)


POPULARITY = Recipe(
    name="popularity",
    about="The items with the most training interactions, the same for every user",
    tokenizer=Atomic(),
    generator=PopularityGenerator(),
)


MEMORY = dataclasses.replace(
    POPULARITY,
    name="memory",
    about="Items that followed the last items of a history, and items like them, by a handful of weights; no network",
    encoder=default_encoder(),
    memory=Memory(),
)

ID_ORDER = dataclasses.replace(
    MEMORY,
    name="id-order",
    about="A probe, not a method: the memory, with one more weight for items whose ids sort after the last item's",
    memory=Memory(id_order=True),
)


ITEM_KNN = Recipe(
    name="item-knn",
    about="Items that users of the history's items took too: co-occurrence in training histories, no network",
    paper="Item-based collaborative filtering (Sarwar et al. 2001)",
    tokenizer=Atomic(),
    generator=ItemKnnGenerator(),
)


EASE = Recipe(
    name="ease",
    about="EASE: linear weights between items in closed form, no network",
    paper="EASE (arXiv 1905.03375)",
    tokenizer=Atomic(),
    generator=EaseGenerator(),
)


VECTOR_KNN = Recipe(
    name="vector-knn",
    about="Items whose vectors are like those of the history: cosine of the vectors that ids are made from, no network",
    encoder=default_encoder(),
    tokenizer=Atomic(),
    generator=VectorKnnGenerator(),
)


TEXT_KNN = dataclasses.replace(
    VECTOR_KNN,
    name="text-knn",
    about="Items whose texts are like those of the history: cosine of text vectors, no network",
    encoder=TextEncoder(),
)


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
