"""One large k-means codebook with a suffix token (residual k-means of depth one), with the shared generator."""

from __future__ import annotations

import dataclasses

from capsid.recipes.rq_kmeans import RQ_KMEANS
from capsid.tokenize.residual_kmeans import ResidualKMeans

KMEANS_FLAT = dataclasses.replace(
    RQ_KMEANS,
    name="kmeans-flat",
    about="k-means, one large codebook and a suffix; Transformer over items and depths; beam search in the trie",
    paper="A row of the tables of CapsID (arXiv 2605.05096)",
    deviations=(
        "codebook chosen so that about two thirds of Beauty's items collide before the suffix, as in the paper's table",
        *RQ_KMEANS.deviations,
    ),
    tokenizer=ResidualKMeans(codebooks=(4096,), restarts=1),
)
