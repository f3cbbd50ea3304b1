"""Residual k-means ids with TIGER's suffix token, with the shared generator."""

from __future__ import annotations

from capsid.encode.defaults import default_encoder
from capsid.generate.generator import TimelineGenerator
from capsid.generate.next_token import NextToken
from capsid.ids.collisions import Suffix
from capsid.recipe import Phase, Recipe
from capsid.tokenize.residual_kmeans import ResidualKMeans

RQ_KMEANS = Recipe(
    name="rq-kmeans",
    about="Residual k-means, 3 codes and a suffix; Transformer over items and depths; beam search in the trie",
    paper="TIGER (Rajput et al. 2023, arXiv 2305.05065) with residual k-means instead of the RQ-VAE",
    deviations=(
        "item vectors join text with collaborative vectors",
        "the generator reads one position per item, scores tokens by cosine, and has no user token",
        "it learns how likely users are to return to an item (generator.repeats=false: off)",
    ),
    encoder=default_encoder(),
    tokenizer=ResidualKMeans(),
    collisions=Suffix(),
    generator=TimelineGenerator(),
    objective=(NextToken(),),
    schedule=(Phase(),),
)
