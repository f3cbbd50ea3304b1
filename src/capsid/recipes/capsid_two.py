"""Two ids per item in one network: merged CapsID ids and flat k-means ids, and the mixture of their probabilities."""

from __future__ import annotations

import dataclasses

from capsid.decode.mixed import Mixed
from capsid.recipes.capsid_bpe import CAPSID_BPE
from capsid.tokenize.second_id import SecondId

CAPSID_TWO = dataclasses.replace(
    CAPSID_BPE,
    name="capsid-two",
    about="Like capsid-bpe, with flat k-means ids as second ids: both are read and predicted, probabilities are mixed",
    deviations=(*CAPSID_BPE.deviations, "every item has a second id (second=null, decoder=beam: off)"),
    second=SecondId(),
    over="children",
    decoder=Mixed(),
)
