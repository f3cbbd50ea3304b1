"""ActionPiece: histories are segmented in context; the tokens of an item depend on its neighbours."""

from __future__ import annotations

import dataclasses

from capsid.decode.ensemble import Ensemble
from capsid.generate.generator import TimelineGenerator
from capsid.ids.collisions import Hashed
from capsid.ids.in_context import InContext
from capsid.recipe import Phase
from capsid.recipes.tiger import TIGER
from capsid.tokenize.actionpiece.merges import Pieces
from capsid.tokenize.product import ProductQuantizer
from capsid.train.options import Training

ACTIONPIECE = dataclasses.replace(
    TIGER,
    name="actionpiece",
    about="Product codes and a hash as sets, merged inside and across items; one history is read in five ways",
    paper="ActionPiece (Hou et al. 2025, arXiv 2502.13581)",
    deviations=(
        "8,192 tokens instead of 40,000: a cheaper vocabulary; 256 hashes on all data (64 on Beauty in the paper)",
        "weights of pairs are exact; in the released code, pairs that vanish keep their weight",
        "the token of a merge across items may stand next to another such token, where all codes between are merged",
        "a training step predicts one random item of each sequence: 0.8 million targets instead of 1.9 million",
        "probabilities are normalised over the tokens that can follow in the trie",
        "validation during training searches one reading instead of five",
        "a merged token's vector is the sum of its codes' vectors and its own",
        *TIGER.deviations[:2],
        "the generator scores by cosine, is not T5, and has no user token",
        *TIGER.deviations[4:],
    ),
    tokenizer=ProductQuantizer(),
    collisions=Hashed(),
    merges=Pieces(),
    reading=InContext(),
    generator=TimelineGenerator(reads="distances"),
    over="children",
    decoder=Ensemble(),
    schedule=(Phase(training=Training(steps=3_200, batch_size=256, validate_every=640)),),
)
