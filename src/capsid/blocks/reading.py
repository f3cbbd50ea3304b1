"""Blocks that read a history by how far back its items stand, whatever place they have.

`NearBlock` is attention that adds what every head has learnt of each distance; `MixingBlock` weighs by distance alone
and looks at no item to do so. Both read whole sequences only, oldest first, and no position sees a later one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from capsid.blocks.dropout import dropout
from capsid.blocks.layers import Block, BlockShape, Cache, Layer


class Distances(nn.Module):
    """A number for every head and every distance back."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.by_distance = nn.Parameter(torch.zeros(shape.heads, shape.history + 1))

    def start(self) -> None:
        """Heads begin with different reach: each falls off half as fast as the one before, the last not at all (the
        slopes of Press et al. 2022, arXiv 2108.12409, which there stay as they are)."""
        heads, distances = self.by_distance.shape
        slopes_H = torch.tensor([0.5**head for head in range(heads - 1)] + [0.0])
        with torch.no_grad():
            self.by_distance.copy_(-slopes_H[:, None] * torch.arange(distances))

    def forward(self, length: int) -> Tensor:
        """For every position all before it and itself, minus infinity for what comes later. Shape: (H, L, L)."""
        place_L = torch.arange(length)
        back_LL = place_L[:, None] - place_L[None, :]
        return self.by_distance[:, back_LL.clamp_min(0)].masked_fill(back_LL < 0, -torch.inf)


class NearBlock(Block):
    """Attention to which distances are added."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__(shape)
        self.distances = Distances(shape)

    def forward(
        self, x_BLD: Tensor, padding_BL: Tensor | None = None, empty_B: Tensor | None = None
    ) -> tuple[Tensor, Cache]:
        """Whole sequences; padding stands at the end, where no real position sees it, and nothing is seen in front."""
        q, k, v = (t.transpose(1, 2) for t in self._project(x_BLD))
        near_BHLL = self.distances(x_BLD.shape[1]).expand(len(x_BLD), -1, -1, -1)
        mixed = self._attend(q, k, v, near_BHLL)
        return self._finish(x_BLD, mixed.transpose(1, 2).flatten(2)), Cache(k, v)


class MixingBlock(Layer):
    """Every head is a weighted mean of what came before, with the same weights for every history."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__(shape)
        self.value = nn.Linear(shape.width, shape.width)
        self.distances = Distances(shape)

    def forward(self, x_BLD: Tensor) -> tuple[Tensor, None]:
        """Whole sequences; nothing is left to go on from."""
        value_BLHK = self.value(self.norm_attention(x_BLD)).unflatten(-1, (self.heads, -1))
        weights_HLM = self.distances(x_BLD.shape[1]).softmax(-1)
        weights_HLM = dropout(weights_HLM, self.attention_dropout, self.training)
        mixed_BLHK = torch.einsum("hlm,bmhk->blhk", weights_HLM, value_BLHK)
        return self._finish(x_BLD, mixed_BLHK.flatten(2)), None
