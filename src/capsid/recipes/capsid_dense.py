"""CapsID ids with dense item vectors: measures what a dense path adds to better ids."""

from __future__ import annotations

import dataclasses

from capsid.generate.dense_match import DenseMatch
from capsid.generate.next_token import NextToken
from capsid.recipes.capsid import CAPSID
from capsid.recipes.tiger_dense import TIGER_DENSE

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
