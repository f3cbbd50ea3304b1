"""One more id system of the items as a part of a recipe: a tokenizer for the same vectors, and its collision policy.

`capsid.tokenize.item_tokenizer` fits it after the first; its tokens follow those of the others in one vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from capsid.ids.collisions import CollisionPolicy, Suffix
from capsid.settings import check_settings, setting
from capsid.tokenize.base import Tokenizer
from capsid.tokenize.residual_kmeans import ResidualKMeans


def _flat() -> ResidualKMeans:
    return ResidualKMeans(codebooks=(4096,), restarts=1)


@dataclass(kw_only=True, frozen=True)
class IdSystem:
    """By default one large k-means codebook and a suffix: few codes, all at once, where the first id has a hierarchy.

    It has no merges.
    """

    kind: ClassVar[str] = "id-system"
    tokenizer: Tokenizer = setting(factory=_flat, about="Makes the codes of these ids from item vectors.")
    collisions: CollisionPolicy = setting(factory=Suffix, about="How to treat items with equal codes in these ids.")

    def __post_init__(self) -> None:
        check_settings(self)
