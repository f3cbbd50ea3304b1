"""ReSID: item vectors from masked fields instead of text, and ids from a balanced tree with aligned numbers."""

from __future__ import annotations

import dataclasses

from capsid.encode.field_encoder import FieldEncoder
from capsid.ids.collisions import Bucket
from capsid.recipes.rq_kmeans import RQ_KMEANS
from capsid.tokenize.aligned_tree import AlignedTree

RESID = dataclasses.replace(
    RQ_KMEANS,
    name="resid",
    about="Item vectors from masked fields (id, brand, categories); a balanced tree of clusters, unique ids of 3 codes",
    paper="ReSID (Liang et al. 2026, arXiv 2602.02338)",
    deviations=(
        "field embeddings are 64 wide instead of 128; 3,000 steps of 256 histories, without early stopping",
        "values of fewer than 5 items count as unknown; all fields have the same weight in the loss",
        "an item in no training history has its fields but no id embedding; the paper adds such items to training",
        "clusters are balanced greedily, and 24 x 40 of them suit some 12,000 items (tokenizer.branching)",
        "the shared generator instead of T5",
        *RQ_KMEANS.deviations[1:],
    ),
    encoder=FieldEncoder(),
    tokenizer=AlignedTree(branching=(24, 40)),
    collisions=Bucket(),
)
