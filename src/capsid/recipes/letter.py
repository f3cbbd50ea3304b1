"""LETTER's ids: LC-Rec's, with codes that match behaviour and codebooks kept diverse."""

from __future__ import annotations

import dataclasses

from capsid.encode.defaults import default_encoder
from capsid.encode.sequence import SequenceEncoder
from capsid.encode.views import Views
from capsid.recipes.lc_rec import LC_REC
from capsid.tokenize.rqvae.terms import CodeDiversity, CollaborativeMatch

LETTER = dataclasses.replace(
    LC_REC,
    name="letter",
    about="Like lc-rec, with codes that match SASRec's item vectors and codebooks that are kept diverse",
    paper="LETTER (Wang et al. 2024, arXiv 2405.07314), in the released settings for Beauty",
    deviations=(
        "behaviour vectors come from our SASRec with full cross-entropy; items without behaviour are not matched",
        "the joined item vectors already contain collaborative ones (encoder.item=text: text only, as published)",
        "groups of codes come from a greedy bounded k-means, not from an exact one",
        "temperature 1 in the generator's loss, as released for Beauty, not the 0.7 of the paper",
        "the shared generator instead of T5",
        *LC_REC.deviations[2:],
    ),
    encoder=Views(item=default_encoder(), others=(("behaviour", SequenceEncoder(dim=32)),)),
    tokenizer=dataclasses.replace(
        LC_REC.tokenizer,  # type: ignore[type-var]
        terms=(CollaborativeMatch(weight=0.1), CodeDiversity(weight=1e-4)),
        start="bounded",
    ),
)
