"""The tokenizers, the parts inside them and the ways to merge tokens, by kind."""

from __future__ import annotations

from capsid.data.fields import Field
from capsid.tokenize.actionpiece.merges import Pieces
from capsid.tokenize.aligned_tree import AlignedTree
from capsid.tokenize.atomic import Atomic
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.tokenize.chained import Chained
from capsid.tokenize.frequency import Frequency
from capsid.tokenize.id_system import IdSystem
from capsid.tokenize.merging.semantic_bpe import SemanticBPE
from capsid.tokenize.mixture.tokenizer import Mixture
from capsid.tokenize.product import ProductQuantizer
from capsid.tokenize.residual_kmeans import ResidualKMeans
from capsid.tokenize.rqvae.assign import Sinkhorn
from capsid.tokenize.rqvae.terms import CodeDiversity, CollaborativeMatch
from capsid.tokenize.rqvae.tokenizer import RQVAE

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
    )
}
TOKENIZER_PARTS: dict[str, type] = {
    part.kind: part for part in (Sinkhorn, CollaborativeMatch, CodeDiversity, Field, IdSystem)
}
MERGES: dict[str, type] = {m.kind: m for m in (SemanticBPE, Pieces)}
