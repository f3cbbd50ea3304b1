"""ADA-SID: parallel quantisers of text and behaviour; a router may close those of behaviour."""

from __future__ import annotations

import dataclasses

from capsid.encode.sequence import SequenceEncoder
from capsid.encode.text import TextEncoder
from capsid.encode.views import Views
from capsid.ids.collisions import Bucket
from capsid.recipes.rq_kmeans import RQ_KMEANS
from capsid.tokenize.mixture.tokenizer import Mixture

ADA_SID = dataclasses.replace(
    RQ_KMEANS,
    name="ada-sid",
    about="7 parallel codebooks: 2 of text and behaviour, 2 of text, up to 3 of behaviour, fewer for rare items",
    paper="ADA-SID (Xu et al. 2025, arXiv 2510.25622)",
    deviations=(
        "two views, text and the item vectors of our SASRec; there are no images",
        "numbers of experts, widths and weights of the losses are ours; those published do not add up",
        "how much behaviour an item has is the log of its training count; norms of our SASRec's vectors fall with it",
        "the router reads that number and the vector's direction; closed experts get a tenth of the gradient",
        "sparsity works in both directions, and its weight is adapted for eight groups of items by their behaviour",
        "codes stand in the order shared, text, behaviour, and closed experts give no token",
        "codebooks start from k-means, and unused codes are revived",
        "the shared generator",
        *RQ_KMEANS.deviations[1:],
    ),
    encoder=Views(item=TextEncoder(), others=(("behaviour", SequenceEncoder(dim=32)),)),
    tokenizer=Mixture(),
    collisions=Bucket(),
)
