"""The tokenizers and the ways to merge tokens that there are, by kind."""

from __future__ import annotations

from capsid.tokenize.atomic import Atomic
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.tokenize.frequency import Frequency
from capsid.tokenize.merging.semantic_bpe import SemanticBPE
from capsid.tokenize.residual_kmeans import ResidualKMeans
from capsid.tokenize.rqvae.tokenizer import RQVAE

TOKENIZERS: dict[str, type] = {t.kind: t for t in (CapsuleTokenizer, ResidualKMeans, RQVAE, Frequency, Atomic)}
MERGES: dict[str, type] = {SemanticBPE.kind: SemanticBPE}
