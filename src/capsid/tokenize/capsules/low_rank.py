"""A low-rank matrix that is added to every vote of a depth. Knows vectors only."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LowRank(nn.Module):
    """`scale` A B; B starts random and A at zero, so nothing changes before training."""

    scale: Tensor

    def __init__(self, dim: int, width: int, rank: int, rng: torch.Generator) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(dim, rank))
        self.down = nn.Parameter(torch.randn(rank, width, generator=rng) / width**0.5)
        self.register_buffer("scale", torch.tensor(1.0), persistent=False)

    def forward(self, r_BD: Tensor) -> Tensor:
        """The term added to every vote. Shape: (B, C)."""
        return self.scale * ((r_BD @ self.down.T) @ self.up.T)

    def matrix(self) -> Tensor:
        """The scaled product A B. Shape: (C, D)."""
        return self.scale * (self.up @ self.down)

    def norm(self) -> float:
        """The Frobenius norm of the matrix."""
        return float(self.matrix().detach().norm())
