"""ETEGRec: RQ-VAE ids of SASRec's item vectors; tokenizer and generator learn in turns and are aligned."""

from __future__ import annotations

import dataclasses

from capsid.encode.sequence import SequenceEncoder
from capsid.generate.alternating import Alternating
from capsid.ids.collisions import Suffix
from capsid.recipe import Phase
from capsid.recipes.tiger import TIGER
from capsid.tokenize.rqvae.tokenizer import RQVAE

ETEGREC = dataclasses.replace(
    TIGER,
    name="etegrec",
    about="RQ-VAE on SASRec's item vectors; tokenizer and generator learn in turns, aligned with each other",
    paper="ETEGRec (Liu et al. 2025, arXiv 2409.05546), with the published weights of both alignments",
    deviations=(
        *TIGER.deviations[2:],
        "item vectors come from our SASRec with full cross-entropy, 64 wide instead of 256",
        "items without training sequences, also new ones, get the mean of all vectors and differ in their suffixes",
        "six turns of the tokenizer within 70 % of the steps, not every other epoch until validation stops improving",
        "the tokenizer stays as it is while alignment is off, in the first fifth of the steps",
        "codes are aligned by the softmax of minus distances as in the paper; the released code has the other sign",
        "the state of a history is the timeline's last row, not a mean over positions",
        "at every depth the commitment loss reaches the encoder; losses of depths are added, not averaged",
    ),
    encoder=SequenceEncoder(dim=64, unseen="mean"),
    tokenizer=RQVAE(hidden=(512, 256), latent=128),
    # Capacity for collisions of later ids, and for items without training sequences, which all have the same vector.
    collisions=Suffix(capacity=256),
    schedule=(Phase(adapt=Alternating()),),
)
