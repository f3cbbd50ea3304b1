"""TIGER with item vectors beside its ids: a vector instead of a suffix tells colliding items apart."""

from __future__ import annotations

import dataclasses

from capsid.decode.fusion import BeamFusion
from capsid.generate.dense_match import DenseMatch
from capsid.generate.next_token import NextToken
from capsid.ids.collisions import Bucket
from capsid.recipes.tiger import TIGER

TIGER_DENSE = dataclasses.replace(
    TIGER,
    name="tiger-dense",
    about="As tiger, with item vectors read beside the ids and predicted after them; beams and vectors fused",
    paper="TIGER (Rajput et al. 2023, arXiv 2305.05065) with the dense path of COBRA (arXiv 2503.02453)",
    deviations=(
        *TIGER.deviations,
        "no suffix: colliding items share a bucket, and their vectors order them",
        "an item's vector is added to its position of the timeline; temperatures of the fusion are ours",
    ),
    collisions=Bucket(),
    objective=(NextToken(), DenseMatch()),
    decoder=BeamFusion(),
)
