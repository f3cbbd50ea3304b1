"""Token embeddings: the vectors that a network reads, and those that tokens are scored with.

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

from capsid.base.blocks.packed import dropout
from capsid.base.blocks.t5 import EPS
from capsid.ids.merges import MergeTable
from capsid.ids.mixtures import Corrections


@dataclass(frozen=True, eq=False)
class TokenVectors:
    """Vectors of all tokens. A score is the inner product of `score` and a hidden row after the last norm.

    Shape of both: (V, D).
    """

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
