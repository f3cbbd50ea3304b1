"""CapsID ids with item vectors beside them: what a dense patch still adds to better ids."""

from __future__ import annotations

import dataclasses

from capsid.decode.fusion import BeamFusion
from capsid.generate.dense_match import DenseMatch
from capsid.generate.next_token import NextToken
from capsid.recipes.capsid import CAPSID

CAPSID_DENSE = dataclasses.replace(
    CAPSID,
    name="capsid-dense",
    about="As capsid, with item vectors read beside the ids and predicted after them; beams and vectors fused",
    paper="CapsID (arXiv 2605.05096), table on dense patches, with the dense path of COBRA (arXiv 2503.02453)",
    deviations=(
        *CAPSID.deviations,
        "an item's vector is added to its position of the timeline; temperatures of the fusion are ours",
    ),
    objective=(NextToken(), DenseMatch()),
    decoder=BeamFusion(),
)
