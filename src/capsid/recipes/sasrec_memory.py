"""SASRec with a memory of followers and similar items: what `capsid fit` fits if no recipe is named."""

from __future__ import annotations

import dataclasses

from capsid.encode.defaults import default_encoder
from capsid.memory.memory import Memory
from capsid.recipes.sasrec import SASREC

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
