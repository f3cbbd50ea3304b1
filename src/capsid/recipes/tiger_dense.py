"""TIGER with dense item vectors, which distinguish colliding items instead of a suffix."""

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
    about="Like tiger, with dense item vectors read with the ids and predicted after them; beams and vectors fused",
    paper="TIGER (Rajput et al. 2023, arXiv 2305.05065) with the dense path of COBRA (arXiv 2503.02453)",
    deviations=(
        *TIGER.deviations,
        "no suffix: colliding items share a bucket, ranked by their vectors",
        "an item's vector is added to its position in the timeline",
        "vectors compare items of the same id, not all items that were found (decoder.among=found: as published)",
    ),
    collisions=Bucket(),
    objective=(NextToken(), DenseMatch()),
    # COBRA has 16 for its industrial data; validation prefers 32 where many items share an id.
    decoder=BeamFusion(among="id", dense_temperature=32.0),
)
