"""Blocks with relative positions: they use the distance between items, not absolute positions.

`NearBlock` is attention with a learnt bias per head and distance. `MixingBlock` has weights that depend only on the
distance, not on the items. Both read whole sequences, oldest first, and no position sees a later one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from capsid.blocks.dropout import dropout
from capsid.blocks.layers import Block, BlockShape, Cache, Layer


class Distances(nn.Module):
    """A learnt number per head and distance."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.by_distance = nn.Parameter(torch.zeros(shape.heads, shape.history + 1))

    def start(self) -> None:
        """Start heads with different reach: each slope is half the one before, the last is 0. These are the slopes of
        Press et al. 2022 (arXiv 2108.12409), which are not learnt there."""
        heads, distances = self.by_distance.shape
        slopes_H = torch.tensor([0.5**head for head in range(heads - 1)] + [0.0])
        with torch.no_grad():
            self.by_distance.copy_(-slopes_H[:, None] * torch.arange(distances))

    def forward(self, length: int) -> Tensor:
        """Every position's numbers for itself and earlier ones; minus infinity for later ones. Shape: (H, L, L)."""
        place_L = torch.arange(length)
        back_LL = place_L[:, None] - place_L[None, :]
        return self.by_distance[:, back_LL.clamp_min(0)].masked_fill(back_LL < 0, -torch.inf)


class NearBlock(Block):
    """Attention with a bias by distance."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__(shape)
        self.distances = Distances(shape)

    def forward(
        self, x_BLD: Tensor, padding_BL: Tensor | None = None, empty_B: Tensor | None = None
    ) -> tuple[Tensor, Cache]:
        """Run whole sequences. Padding is at the end, where no real position sees it; `empty` is ignored."""
        q, k, v = (t.transpose(1, 2) for t in self._project(x_BLD))
        near_BHLL = self.distances(x_BLD.shape[1]).expand(len(x_BLD), -1, -1, -1)
        mixed = self._attend(q, k, v, near_BHLL)
        return self._finish(x_BLD, mixed.transpose(1, 2).flatten(2)), Cache(k, v)


class MixingBlock(Layer):
    """Every head is a weighted mean of this and earlier positions, with the same weights for every history."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__(shape)
        self.value = nn.Linear(shape.width, shape.width)
        self.distances = Distances(shape)

    def forward(self, x_BLD: Tensor) -> tuple[Tensor, None]:
        """Run whole sequences; there is no cache."""
        value_BLHK = self.value(self.norm_attention(x_BLD)).unflatten(-1, (self.heads, -1))
        weights_HLM = self.distances(x_BLD.shape[1]).softmax(-1)
        weights_HLM = dropout(weights_HLM, self.attention_dropout, self.training)
        mixed_BLHK = torch.einsum("hlm,bmhk->blhk", weights_HLM, value_BLHK)
        return self._finish(x_BLD, mixed_BLHK.flatten(2)), None
