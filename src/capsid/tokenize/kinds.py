"""The tokenizers, the parts inside them and the ways to merge tokens, by kind; and one more id system of the items.

`capsid.tokenize.item_tokenizer` fits other id systems after the first; their tokens follow in one vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from capsid.data.fields import Field
from capsid.ids.collisions import CollisionPolicy, Suffix
from capsid.settings import Checked, setting
from capsid.tokenize.base import Tokenizer
from capsid.tokenize.capsules.semantic_bpe import SemanticBPE
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.tokenize.rivals.actionpiece import Pieces
from capsid.tokenize.rivals.aligned_tree import AlignedTree
from capsid.tokenize.rivals.lookup import Atomic, Frequency, GivenCodes
from capsid.tokenize.rivals.mixture import Mixture
from capsid.tokenize.rivals.quantisers import Chained, ProductQuantizer, ResidualKMeans
from capsid.tokenize.rivals.rqvae import RQVAE
from capsid.tokenize.rivals.rqvae_network import Sinkhorn
from capsid.tokenize.rivals.rqvae_terms import CodeDiversity, CollaborativeMatch


def _flat() -> ResidualKMeans:
    return ResidualKMeans(codebooks=(4096,), restarts=1)


@dataclass(kw_only=True, frozen=True)
class IdSystem(Checked):
    """By default one large k-means codebook and a suffix: few codes, all at once, where the first id has a hierarchy.
    It has no merges."""

    kind: ClassVar[str] = "id-system"
    tokenizer: Tokenizer = setting(factory=_flat, about="Makes the codes of these ids from item vectors.")
    collisions: CollisionPolicy = setting(factory=Suffix, about="How to treat items with equal codes in these ids.")


TOKENIZERS: dict[str, type] = {
    t.kind: t
    for t in (
        CapsuleTokenizer,
        ResidualKMeans,
        ProductQuantizer,
        RQVAE,
        AlignedTree,
        Mixture,
        Chained,
        Frequency,
        Atomic,
        GivenCodes,
    )
}
TOKENIZER_PARTS: dict[str, type] = {
    part.kind: part for part in (Sinkhorn, CollaborativeMatch, CodeDiversity, Field, IdSystem)
}
MERGES: dict[str, type] = {m.kind: m for m in (SemanticBPE, Pieces)}
