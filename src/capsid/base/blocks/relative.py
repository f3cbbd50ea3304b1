"""Blocks with relative positions: they use the distance between items, not absolute positions.

`NearBlock` is attention with a learnt bias per head and distance. `MixingBlock` has weights that depend only on the
distance, not on the items. Both read whole sequences, oldest first, and no position sees a later one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from capsid.base.blocks.dropout import dropout
from capsid.base.blocks.layers import Block, BlockShape, Cache, Layer
from capsid.base.blocks.packed import Packed


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

    def packed(self, x_RD: Tensor, packed: Packed, empty_B: Tensor | None = None) -> Tensor:
        """As `forward` on padded sequences, for their real rows alone; the same elements are dropped.

        `empty` is ignored.
        """
        return self._packed(x_RD, packed, near_HLL=self.distances(packed.among.width))


class MixingBlock(Layer):
    """Every head is a weighted mean of this and earlier positions, with the same weights for every history."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__(shape)
        self.value = nn.Linear(shape.width, shape.width)
        self.distances = Distances(shape)

    def forward(self, x_BLD: Tensor) -> tuple[Tensor, None]:
        """Run whole sequences; there is no cache."""
        mixed_BLHK = _mixed(self._weights(x_BLD.shape[1]), self._values(x_BLD))
        return self._finish(x_BLD, mixed_BLHK.flatten(2)), None

    def packed(self, x_RD: Tensor, packed: Packed, empty_B: Tensor | None = None) -> Tensor:
        """As `forward` on padded sequences, for their real rows alone; the same elements are dropped.

        `empty` is ignored.
        """
        values_RHK, weights_HLM = self._values(x_RD), self._weights(packed.among.width)
        mixed = []
        for group in packed.groups:
            # What a position sees does not depend on the length of its sequence.
            near_HLM = weights_HLM[:, : group.own.width, : group.own.width]
            mixed.append(group.own.rows(_mixed(near_HLM, group.own.padded(values_RHK[group.rows]))))
        return self._finish(x_RD, torch.cat(mixed).flatten(1), packed.among)

    def _values(self, x: Tensor) -> Tensor:
        return self.value(self.norm_attention(x)).unflatten(-1, (self.heads, -1))

    def _weights(self, length: int) -> Tensor:
        """Weights of this and earlier positions. Shape: (H, L, L)."""
        return dropout(self.distances(length).softmax(-1), self.attention_dropout, self.training)


def _mixed(weights_HLM: Tensor, values_BMHK: Tensor) -> Tensor:
    return torch.einsum("hlm,bmhk->blhk", weights_HLM, values_BMHK)
