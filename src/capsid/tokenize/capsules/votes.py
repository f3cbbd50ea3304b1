"""Votes of the capsules of one depth, u_k = W_k r + b_k (CapsID, Eq. 1), and the few sums over them that routing needs.

Here all capsules of a depth share one matrix and differ by their biases, so votes are never a tensor (B, K, C): that is
why every use of them is a method of `Votes`. `full_votes.py` has one matrix per capsule. Knows nothing about rounds,
tokens or depths.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

# Norms below this count as zero: a direction cannot be read from rounding errors.
TINY = 1e-6


class Votes(Protocol):
    """The votes of a batch: B rows, K capsules, C numbers per vote."""

    def dot(self, other_BC: Tensor) -> Tensor:
        """u_k . other. Shape: (B, K)."""

    def norms(self) -> Tensor:
        """|u_k|. Shape: (B, K)."""

    def mean(self) -> Tensor:
        """Mean of all votes. Shape: (B, C)."""

    def dot_mean(self, scale_B1: Tensor) -> Tensor:
        """u_k . scale mean. Shape: (B, K)."""

    def mix(self, weights_BK: Tensor) -> Tensor:
        """sum_k w_k u_k. Shape: (B, C)."""


def norm(z_BC: Tensor) -> Tensor:
    """Row norms with a gradient at zero. Shape: (B,)."""
    return torch.linalg.vector_norm(z_BC, dim=-1).clamp_min(TINY)


class SharedVotes:
    """u_k = p + b_k with p = P r: votes differ by their biases only."""

    def __init__(self, base_BC: Tensor, bias_KC: Tensor) -> None:
        self.base_BC, self.bias_KC = base_BC, bias_KC
        # p . b_k is used in the norms and the first agreement, p . p in all of them.
        self.cross_BK = base_BC @ bias_KC.T
        self.square_B1 = base_BC.square().sum(1, keepdim=True)

    def dot(self, other_BC: Tensor) -> Tensor:
        """u_k . other. Shape: (B, K)."""
        return torch.addmm((self.base_BC * other_BC).sum(1, keepdim=True), other_BC, self.bias_KC.T)

    def norms(self) -> Tensor:
        """|u_k|. Shape: (B, K)."""
        # In place: these tensors are as large as the caches.
        squares_BK = (self.square_B1 + self.bias_KC.square().sum(1)).add_(self.cross_BK, alpha=2)
        return squares_BK.clamp_min_(TINY**2).sqrt_()

    def mean(self) -> Tensor:
        """Mean of all votes. Shape: (B, C)."""
        return self.base_BC + self.bias_KC.mean(0)

    def dot_mean(self, scale_B1: Tensor) -> Tensor:
        """u_k . scale mean, without recomputing p . b_k. Shape: (B, K)."""
        mean_C = self.bias_KC.mean(0)
        base_B1 = self.square_B1 + (self.base_BC @ mean_C)[:, None]
        return (self.cross_BK + base_B1).add_(self.bias_KC @ mean_C).mul_(scale_B1)

    def mix(self, weights_BK: Tensor) -> Tensor:
        """sum_k w_k u_k. Shape: (B, C)."""
        return torch.addmm(self.base_BC * weights_BK.sum(1, keepdim=True), weights_BK, self.bias_KC)


class SharedPoses(nn.Module):
    """W_k = P for all capsules: C d + K C numbers."""

    def __init__(self, capsules: int, dim: int, width: int, rng: torch.Generator) -> None:
        super().__init__()
        self.base = nn.Parameter(torch.randn(dim, width, generator=rng) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(capsules, dim))

    def forward(self, r_BD: Tensor, shift_BC: Tensor | None = None) -> SharedVotes:
        """Votes of a batch of residuals; `shift` is added to every vote of a row."""
        base_BC = r_BD @ self.base.T
        return SharedVotes(base_BC if shift_BC is None else base_BC + shift_BC, self.bias)

    @torch.no_grad()
    def absorb(self, change_CD: Tensor) -> None:
        """Add one matrix to the poses of all capsules."""
        self.base.add_(change_CD)

    @torch.no_grad()
    def start(self, shared_CD: Tensor, bias_KC: Tensor, noise: float, rng: torch.Generator) -> None:
        """Start from a projection and a bias per capsule; no noise is needed, since the biases differ."""
        self.base.copy_(shared_CD)
        self.bias.copy_(bias_KC)

    @torch.no_grad()
    def restart(self, capsules: Tensor, bias_RC: Tensor) -> None:
        """Give some capsules a new bias."""
        self.bias[capsules] = bias_RC

    def shared(self) -> Tensor:
        """The projection shared by the capsules. Shape: (C, d)."""
        return self.base.detach()
