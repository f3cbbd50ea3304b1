"""The embeddings of tokens: what each enters a network as, and what it is scored by.

Merged tokens may be made of their parts, scores may be cosines. Knows tokens only; which tokens are merged is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class TokenVectors:
    """Of every token of the vocabulary. Shapes: (V, D)."""

    enter_VD: Tensor
    score_VD: Tensor


class TokenTable(nn.Embedding):
    """A row a token, tied: the same vectors enter and score.

    With `parts`, the last tokens are merged ones, each made of the given earlier tokens: their vectors are those of
    their parts plus their own row, which starts at nothing. With a temperature above 0, a score is the cosine over it,
    for hidden rows of length sqrt(D), as LayerNorm makes them; otherwise it is the inner product.
    """

    parts_P: Tensor
    starts_M: Tensor
    scales_M1: Tensor

    def __init__(self, vocabulary: int, width: int, parts: Ragged | None = None, temperature: float = 0.0) -> None:
        super().__init__(vocabulary, width)
        self.temperature = temperature
        self.merged = 0 if parts is None else len(parts)
        if parts is not None:
            # The sum over the root of their number, as merged tokens are warm-started (methods 6.7, B11).
            roots = np.sqrt(parts.lengths.astype(np.float32))
            arrays = {"parts_P": parts.values, "starts_M": parts.offsets[:-1], "scales_M1": 1 / roots[:, None]}
            for name, array in arrays.items():
                self.register_buffer(name, torch.from_numpy(np.array(array)), persistent=False)

    def clear_own(self) -> None:
        """Merged tokens become their parts and nothing else."""
        with torch.no_grad():
            self.weight[len(self.weight) - self.merged :] = 0.0

    def vectors(self) -> TokenVectors:
        """As the weights are now, with gradients; made once for all that a step does."""
        enter_VD = self._composed()
        if not self.temperature:
            return TokenVectors(enter_VD, enter_VD)
        scale = 1 / (self.temperature * math.sqrt(self.embedding_dim))
        return TokenVectors(enter_VD, F.normalize(enter_VD, dim=1) * scale)

    def _composed(self) -> Tensor:
        if not self.merged:
            return self.weight
        plain_WD, own_MD = self.weight[: -self.merged], self.weight[-self.merged :]
        sums_MD = F.embedding_bag(self.parts_P, plain_WD, self.starts_M, mode="sum")
        return torch.cat([plain_WD, torch.addcmul(own_MD, sums_MD, self.scales_M1)])
