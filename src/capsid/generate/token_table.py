"""Token embeddings: the vectors that a network reads, and those that tokens are scored with.

Embeddings of merged tokens may be composed of their members'. Scores are inner products, cosines, or something between
the two, optionally with a bias per token. Knows tokens only; which tokens are merged is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.blocks.dropout import dropout
from capsid.blocks.t5 import EPS
from capsid.ids.mixtures import Corrections
from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class TokenVectors:
    """Vectors of all tokens. Shapes: (V, D), (V, S), where S is D, or D + 1 with a bias per token.

    A score is the inner product of `score` and a hidden row after the last norm (see `LastNorm`).
    """

    enter_VD: Tensor
    score_VS: Tensor


class LastNorm(nn.LayerNorm):
    """LayerNorm of the rows that tokens are predicted from; with `ones`, a 1 is appended for the tokens' biases."""

    def __init__(self, width: int, *, ones: bool = False) -> None:
        super().__init__(width)
        self.ones = ones

    def forward(self, x: Tensor) -> Tensor:
        """Rows of width S."""
        normed = super().forward(x)
        return F.pad(normed, (0, 1), value=1.0) if self.ones else normed


class LastRMSNorm(nn.RMSNorm):
    """T5's last norm: RMSNorm times `factor`, with dropout; with `ones`, a 1 is appended for the tokens' biases."""

    def __init__(self, width: int, *, factor: float, rate: float, ones: bool = False) -> None:
        super().__init__(width, eps=EPS)
        self.factor, self.rate, self.ones = factor, rate, ones

    def forward(self, x: Tensor) -> Tensor:
        """Rows of width S."""
        normed = dropout(super().forward(x) * self.factor, self.rate, self.training)
        return F.pad(normed, (0, 1), value=1.0) if self.ones else normed


class TokenTable(nn.Embedding):
    """One row per token, tied: the same vectors are read and scored with.

    With `members`, the last tokens (before `beyond` others) are merged ones, each made of the given earlier tokens: a
    vector is the scaled sum of its members' plus the token's own row, which starts at 0. In training a share
    `own_dropout` of the own rows is dropped at every step, so that the members learn to explain a token and its own row
    to correct them.

    With a temperature above 0, a score is the cosine over it, for hidden rows of length sqrt(D), as LayerNorm makes
    them; otherwise it is the inner product. With `length`, the cosine is multiplied by a learnt power of the vector's
    length, initially 0, so that a frequent token may become long. With `bias`, a learnt number per token, initially 0,
    is added to its scores.
    """

    members_P: Tensor
    starts_M: Tensor
    scales_M1: Tensor

    def __init__(
        self,
        vocabulary: int,
        width: int,
        members: Ragged | None = None,
        *,
        temperature: float = 0.0,
        length: bool = False,
        bias: bool = False,
        own_dropout: float = 0.0,
        beyond: int = 0,
    ) -> None:
        super().__init__(vocabulary, width)
        self.temperature = temperature
        self.own_dropout = own_dropout
        self.power = nn.Parameter(torch.zeros(())) if length else None
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None
        self.merged = 0 if members is None else len(members)
        self.end = vocabulary - beyond
        if members is not None:
            # The sum of n members over sqrt(n), as in the warm start of merged tokens.
            roots = np.sqrt(members.lengths.astype(np.float32))
            arrays = {"members_P": members.values, "starts_M": members.offsets[:-1], "scales_M1": 1 / roots[:, None]}
            for name, array in arrays.items():
                self.register_buffer(name, torch.as_tensor(np.array(array)), persistent=False)

    def start(self) -> None:
        """Own rows of merged tokens, power and biases become 0."""
        with torch.no_grad():
            self.weight[self.end - self.merged : self.end] = 0.0
            for parameter in (self.power, self.bias):
                if parameter is not None:
                    parameter.zero_()

    def vectors(self) -> TokenVectors:
        """From the current weights, with gradients; computed once per step."""
        enter_VD = self._composed()
        score_VS = self._scoring(enter_VD)
        if self.bias is not None:
            score_VS = torch.cat([score_VS, self.bias[:, None]], 1)
        return TokenVectors(enter_VD, score_VS)

    def _scoring(self, enter_VD: Tensor) -> Tensor:
        if not self.temperature:
            return enter_VD
        scale = 1 / (self.temperature * math.sqrt(self.embedding_dim))
        directions_VD = F.normalize(enter_VD, dim=1) * scale
        if self.power is None:
            return directions_VD
        # The clamp is for padding: at length 0 the power has no gradient.
        lengths_V1 = enter_VD.square().sum(1, keepdim=True).clamp_min(1e-12).sqrt()
        return directions_VD * lengths_V1.pow(self.power)

    def _composed(self) -> Tensor:
        if not self.merged:
            return self.weight
        first = self.end - self.merged
        plain_WD, own_MD, rest_WD = self.weight[:first], self.weight[first : self.end], self.weight[self.end :]
        if self.own_dropout:
            own_MD = own_MD * dropout(own_MD.new_ones(self.merged, 1), self.own_dropout, self.training)
        sums_MD = F.embedding_bag(self.members_P, plain_WD, self.starts_M, mode="sum")
        return torch.cat([plain_WD, torch.addcmul(own_MD, sums_MD, self.scales_M1), rest_WD])


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
