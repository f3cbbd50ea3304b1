"""Items whose texts are like those of the history, no network: what content alone can do."""

from __future__ import annotations

import dataclasses

from capsid.encode.text import TextEncoder
from capsid.recipes.vector_knn import VECTOR_KNN

TEXT_KNN = dataclasses.replace(
    VECTOR_KNN,
    name="text-knn",
    about="Items whose texts are like those of the history: cosine of text vectors, no network",
    encoder=TextEncoder(),
)
