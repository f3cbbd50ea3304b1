"""The shape of a Transformer over tokens as settings that generators hold, what the ids add to it, and token
embeddings.

Embeddings of merged tokens may be composed of their members'. Scores are inner products or cosines. Knows tokens only;
which tokens are merged is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.base.blocks.layers import BlockShape
from capsid.base.blocks.packed import dropout
from capsid.base.blocks.t5 import EPS
from capsid.errors import ConfigError
from capsid.ids.merges import MergeTable
from capsid.ids.mixtures import Corrections
from capsid.ids.reading import ReadableIds
from capsid.settings import setting


@dataclass(kw_only=True)
class TransformerShape:
    """Sizes, dropout rates, and how tokens enter and are scored. A network reads these settings where they are. With a
    `cosine_temperature` above 0, tokens are scored by cosine, so that a popular token cannot win by a long vector; at 0
    by inner product."""

    layers: int = setting(4, "Transformer layers.", least=1, most=1_000)
    heads: int = setting(4, "Attention heads per layer; the width must be a multiple of them.", least=1)
    width: int = setting(128, "Width of embeddings and hidden states.", least=1)
    feedforward: int = setting(512, "Width inside the feed-forward layers.", least=1)
    dropout: float = setting(0.2, "Dropout inside the layers.", least=0, most=0.99)
    embedding_dropout: float = setting(0.2, "Dropout of the input embeddings.", least=0, most=0.99)
    attention_dropout: float = setting(0.0, "Dropout of attention weights.", least=0, most=0.99)
    hidden_dropout: float = setting(0.0, "Dropout inside the feed-forward layers.", least=0, most=0.99)
    cosine_temperature: float = setting(0.0, "Scores are cosines divided by this; 0: inner products.", least=0)
    input_scale: float = setting(1.0, "Token embeddings are multiplied by this at the input.", above=0)
    initial: str = setting("small", "Fresh weights: spread 0.02, or by a matrix's sizes.", choices=("small", "xavier"))
    positions_from: str = setting("start", "From which end of a history positions count.", choices=("start", "end"))

    def blocks(self, positions: int) -> BlockShape:
        """The shape of a stack of blocks over so many positions."""
        return BlockShape(
            layers=self.layers,
            heads=self.heads,
            width=self.width,
            feedforward=self.feedforward,
            history=positions,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            hidden_dropout=self.hidden_dropout,
        )

    def check_sizes(self) -> None:
        """The width must be a multiple of the heads."""
        if self.width % self.heads:
            raise ConfigError(
                f"generator.width must be a multiple of generator.heads, got {self.width} and {self.heads}",
                hint=f"the nearest width is {max(1, round(self.width / self.heads)) * self.heads}",
            )


@dataclass(frozen=True)
class TokenSpace:
    """What ids fix of a network: how many tokens, depths and positions there are, and merges that compose vectors."""

    vocabulary: int
    depths: int
    positions: int
    merges: MergeTable | None = None

    @classmethod
    def of(cls, ids: ReadableIds, history: int, *, compose: bool = False) -> TokenSpace:
        layout = ids.layout
        merges = layout.merges if compose and len(layout.merges) else None
        return cls(layout.vocabulary, layout.depths + 1, history * ids.positions_per_item, merges)


@dataclass(frozen=True, eq=False)
class TokenVectors:
    """Vectors of all tokens. A score is the inner product of `score` and a hidden row after the last norm. Shape of
    both: (V, D)."""

    enter_VD: Tensor
    score_VS: Tensor


class LastRMSNorm(nn.RMSNorm):
    """T5's last norm: RMSNorm times `factor`, with dropout."""

    def __init__(self, width: int, *, factor: float, rate: float) -> None:
        super().__init__(width, eps=EPS)
        self.factor, self.rate = factor, rate

    def forward(self, x: Tensor) -> Tensor:
        """Rows that tokens are predicted from."""
        return dropout(super().forward(x) * self.factor, self.rate, self.training)


class TokenTable(nn.Embedding):
    """One row per token, tied: the same vectors are read and scored with.

    With `merges`, the vector of a merged token is the scaled sum of its members' plus the token's own row, which starts
    at 0. With a temperature above 0, a score is the cosine over it, for hidden rows of length sqrt(D), as LayerNorm
    makes them; otherwise it is the inner product.
    """

    members_P: Tensor
    starts_M: Tensor
    scales_M1: Tensor

    def __init__(self, vocabulary: int, width: int, merges: MergeTable | None = None, temperature: float = 0.0) -> None:
        super().__init__(vocabulary, width)
        self.temperature = temperature
        self.composed = slice(0, 0)
        if merges is not None:
            members = merges.members
            self.composed = slice(merges.first, merges.first + len(members))
            # The sum of n members over sqrt(n), as in the warm start of merged tokens.
            roots = np.sqrt(members.lengths.astype(np.float32))
            arrays = {"members_P": members.values, "starts_M": members.offsets[:-1], "scales_M1": 1 / roots[:, None]}
            for name, array in arrays.items():
                self.register_buffer(name, torch.as_tensor(np.array(array)), persistent=False)

    def start(self) -> None:
        """Own rows of composed tokens become 0."""
        with torch.no_grad():
            self.weight[self.composed] = 0.0

    def vectors(self) -> TokenVectors:
        """From the current weights, with gradients; computed once per step."""
        enter_VD = self._composed()
        if not self.temperature:
            return TokenVectors(enter_VD, enter_VD)
        scale = 1 / (self.temperature * math.sqrt(self.embedding_dim))
        return TokenVectors(enter_VD, F.normalize(enter_VD, dim=1) * scale)

    def _composed(self) -> Tensor:
        first, end = self.composed.start, self.composed.stop
        if first == end:
            return self.weight
        sums_MD = F.embedding_bag(self.members_P, self.weight[:first], self.starts_M, mode="sum")
        own_MD = torch.addcmul(self.weight[first:end], sums_MD, self.scales_M1)
        return torch.cat([self.weight[:first], own_MD, self.weight[end:]])


def corrections(soft: Corrections, vectors: TokenVectors) -> Tensor:
    """The difference between mixtures and the vectors of tokens. Shape: (R, D)."""
    return F.embedding_bag(
        torch.as_tensor(soft.tokens.values.astype(np.int64)),
        vectors.enter_VD,
        torch.as_tensor(soft.tokens.offsets),
        mode="sum",
        per_sample_weights=torch.as_tensor(soft.weights_E),
        include_last_offset=True,
    )
