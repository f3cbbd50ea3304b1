"""Categories before the codes of residual k-means with bounded loads: UniRec's chain of attributes."""

from __future__ import annotations

import dataclasses

from capsid.data.fields import Field
from capsid.recipes.rq_kmeans import RQ_KMEANS
from capsid.tokenize.chained import Chained
from capsid.tokenize.residual_kmeans import ResidualKMeans

UNIREC_COA = dataclasses.replace(
    RQ_KMEANS,
    name="unirec-coa",
    about="Two category levels, then residual k-means with bounded loads, 3 codes, and a suffix",
    paper="UniRec (Wang et al. 2026, arXiv 2604.12234), only the chain of attributes",
    deviations=(
        "256 codes at each depth instead of 4,000, and a suffix for colliding items",
        "the load of an item is its training count plus 1, because there are no exposure counts",
        "the shared generator: no cross-attention with gates, no content summary, no reward tuning",
        "category values of fewer than 5 items count as unknown",
        *RQ_KMEANS.deviations,
    ),
    tokenizer=Chained(
        fields=(Field(column="categories", level=1), Field(column="categories", level=2)),
        inner=ResidualKMeans(capacity=1.05),
    ),
)
