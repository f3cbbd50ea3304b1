"""Items whose vectors are like those of the history, no network: what the vectors know before ids are made of them."""

from __future__ import annotations

from capsid.encode.defaults import default_encoder
from capsid.generate.similar_items import VectorKnnGenerator
from capsid.recipe import Recipe
from capsid.tokenize.atomic import Atomic

VECTOR_KNN = Recipe(
    name="vector-knn",
    about="Items whose vectors are like those of the history: cosine of the vectors that ids are made from, no network",
    encoder=default_encoder(),
    tokenizer=Atomic(),
    generator=VectorKnnGenerator(),
)
