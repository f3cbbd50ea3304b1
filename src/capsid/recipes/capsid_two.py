"""Two ids per item in one network: merged CapsID ids and flat k-means ids, and the mixture of their probabilities."""

from __future__ import annotations

import dataclasses

from capsid.decode.mixed import Mixed
from capsid.recipes.capsid_strong import CAPSID_STRONG
from capsid.tokenize.id_system import IdSystem

CAPSID_TWO = dataclasses.replace(
    CAPSID_STRONG,
    name="capsid-two",
    about="Like capsid-strong, with flat k-means ids as second ids: both are read and predicted, probabilities mixed",
    deviations=(*CAPSID_STRONG.deviations, "every item has a second id (other_ids=, decoder=beam: off)"),
    other_ids=(IdSystem(),),
    decoder=Mixed(),
)
