"""Votes of the capsules of one depth, and the few sums over them that routing needs.

u_k = W_k r + b_k (CapsID, Eq. 1). Poses come as full matrices, or as W_k = P + A_k B_k with P shared by the depth; the
votes of factorised poses are never materialised, which is why everything here is a method of `Votes` and not a tensor
[B, K, C]. Knows nothing about rounds, tokens or depths.
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

    def pick(self, capsule_B: Tensor) -> Tensor:
        """The vote of one capsule per row. Shape: (B, C)."""


def squash_scale(norm: Tensor) -> Tensor:
    """squash(z) = squash_scale(|z|) z (CapsID, section 3.1, with the constant 0.5); safe at zero."""
    return norm / (0.5 + norm.square())


def squash(z_BC: Tensor) -> Tensor:
    """The paper's squash: the direction is kept, the norm becomes |z|^2 / (0.5 + |z|^2)."""
    return z_BC * squash_scale(norm(z_BC))[:, None]


def norm(z_BC: Tensor) -> Tensor:
    """Row norms with a gradient at zero. Shape: (B,)."""
    return torch.linalg.vector_norm(z_BC, dim=-1).clamp_min(TINY)


class FullVotes:
    """Votes as a tensor."""

    def __init__(self, votes_BKC: Tensor) -> None:
        self.votes_BKC = votes_BKC

    def dot(self, other_BC: Tensor) -> Tensor:
        """u_k . other. Shape: (B, K)."""
        return (self.votes_BKC @ other_BC[:, :, None])[:, :, 0]

    def norms(self) -> Tensor:
        """|u_k|. Shape: (B, K)."""
        return norm(self.votes_BKC)

    def mean(self) -> Tensor:
        """Mean of all votes. Shape: (B, C)."""
        return self.votes_BKC.mean(1)

    def dot_mean(self, scale_B1: Tensor) -> Tensor:
        """u_k . scale mean. Shape: (B, K)."""
        return self.dot(scale_B1 * self.mean())

    def mix(self, weights_BK: Tensor) -> Tensor:
        """sum_k w_k u_k. Shape: (B, C)."""
        return (weights_BK[:, None, :] @ self.votes_BKC)[:, 0]

    def pick(self, capsule_B: Tensor) -> Tensor:
        """The vote of one capsule per row. Shape: (B, C)."""
        return self.votes_BKC[torch.arange(len(capsule_B)), capsule_B]


class BiasVotes:
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

    def pick(self, capsule_B: Tensor) -> Tensor:
        """The vote of one capsule per row. Shape: (B, C)."""
        return self.base_BC + self.bias_KC[capsule_B]


class FactorisedVotes:
    """u_k = p + b_k + A_k h_k with p = P r and h_k = B_k r, kept as these parts."""

    def __init__(self, base_BC: Tensor, bias_KC: Tensor, up_KMC: Tensor, down_BKM: Tensor) -> None:
        self.base_BC, self.bias_KC, self.up_KMC, self.down_BKM = base_BC, bias_KC, up_KMC, down_BKM

    def dot(self, other_BC: Tensor) -> Tensor:
        """u_k . other. Shape: (B, K)."""
        shared_B1 = (self.base_BC * other_BC).sum(1, keepdim=True)
        own_BK = (self._up(other_BC) * self.down_BKM).sum(2)
        return torch.addmm(shared_B1, other_BC, self.bias_KC.T) + own_BK

    def norms(self) -> Tensor:
        """|u_k| by a small quadratic form for each capsule. Shape: (B, K)."""
        base_B1 = self.base_BC.square().sum(1, keepdim=True)
        bias_K = self.bias_KC.square().sum(1)
        gram_KMM = self.up_KMC @ self.up_KMC.transpose(1, 2)
        cross_KM = (self.up_KMC @ self.bias_KC[:, :, None])[:, :, 0]
        curved_BKM = (self.down_BKM.transpose(0, 1) @ gram_KMM).transpose(0, 1)
        own_BK = (self.down_BKM * (curved_BKM + 2 * (cross_KM + self._up(self.base_BC)))).sum(2)
        squares_BK = base_B1 + bias_K + 2 * self.base_BC @ self.bias_KC.T + own_BK
        return squares_BK.clamp_min(TINY**2).sqrt()

    def mean(self) -> Tensor:
        """Mean of all votes. Shape: (B, C)."""
        return self.mix(self.base_BC.new_full(self.down_BKM.shape[:2], 1.0 / self.down_BKM.shape[1]))

    def dot_mean(self, scale_B1: Tensor) -> Tensor:
        """u_k . scale mean. Shape: (B, K)."""
        return self.dot(scale_B1 * self.mean())

    def mix(self, weights_BK: Tensor) -> Tensor:
        """sum_k w_k u_k. Shape: (B, C)."""
        own_BC = (weights_BK[:, :, None] * self.down_BKM).flatten(1) @ self.up_KMC.flatten(0, 1)
        return self.base_BC * weights_BK.sum(1, keepdim=True) + weights_BK @ self.bias_KC + own_BC

    def pick(self, capsule_B: Tensor) -> Tensor:
        """The vote of one capsule per row. Shape: (B, C)."""
        down_BM = self.down_BKM[torch.arange(len(capsule_B)), capsule_B]
        own_BC = (down_BM[:, None, :] @ self.up_KMC[capsule_B])[:, 0]
        return self.base_BC + self.bias_KC[capsule_B] + own_BC

    def _up(self, other_BC: Tensor) -> Tensor:
        """A_k^T other. Shape: (B, K, M)."""
        return (other_BC @ self.up_KMC.flatten(0, 1).T).view(len(other_BC), *self.up_KMC.shape[:2])


class BiasPoses(nn.Module):
    """W_k = P for all capsules, which differ by their biases: C d + K C numbers."""

    def __init__(self, capsules: int, dim: int, width: int, rng: torch.Generator) -> None:
        super().__init__()
        self.base = nn.Parameter(torch.randn(dim, width, generator=rng) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(capsules, dim))

    def forward(self, r_BD: Tensor, shift_BC: Tensor | None = None) -> BiasVotes:
        """Votes of a batch of residuals; `shift` is added to every vote of a row."""
        base_BC = r_BD @ self.base.T
        return BiasVotes(base_BC if shift_BC is None else base_BC + shift_BC, self.bias)

    def absorb(self, change_CD: Tensor) -> None:
        """Add one matrix to the poses of all capsules."""
        self.base.add_(change_CD)

    def full(self) -> FullPoses:
        """The same poses as matrices, for the twin."""
        capsules, dim = self.bias.shape
        poses = FullPoses(capsules, dim, self.base.shape[1], torch.Generator())
        with torch.no_grad():
            poses.weight.copy_(self.base.expand_as(poses.weight))
            poses.bias.copy_(self.bias)
        return poses

    def start(self, shared_CD: Tensor, bias_KC: Tensor, noise: float, rng: torch.Generator) -> None:
        """Start from a projection and a bias per capsule; no noise is needed, since the biases differ."""
        with torch.no_grad():
            self.base.copy_(shared_CD)
            self.bias.copy_(bias_KC)

    def restart(self, capsules: Tensor, bias_RC: Tensor) -> None:
        """Give some capsules a new bias."""
        with torch.no_grad():
            self.bias[capsules] = bias_RC

    def shared(self) -> Tensor:
        """The projection shared by the capsules. Shape: (C, d)."""
        return self.base.detach()


class FullPoses(nn.Module):
    """One matrix per capsule, K C d parameters: exactly Eq. 1 of CapsID."""

    def __init__(self, capsules: int, dim: int, width: int, rng: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(capsules, dim, width, generator=rng) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(capsules, dim))

    def forward(self, r_BD: Tensor, shift_BC: Tensor | None = None) -> FullVotes:
        """Votes of a batch of residuals; `shift` is added to every vote of a row."""
        k, c, d = self.weight.shape
        votes_BKC = (r_BD @ self.weight.view(k * c, d).T).view(-1, k, c) + self.bias
        return FullVotes(votes_BKC if shift_BC is None else votes_BKC + shift_BC[:, None])

    def absorb(self, change_CD: Tensor) -> None:
        """Add one matrix to the poses of all capsules."""
        self.weight.add_(change_CD)

    def start(self, shared_CD: Tensor, bias_KC: Tensor, noise: float, rng: torch.Generator) -> None:
        """Start from one projection for all capsules, a bias for each, and a little noise."""
        with torch.no_grad():
            scale = noise / self.weight.shape[2] ** 0.5
            self.weight.copy_(shared_CD + scale * torch.randn(self.weight.shape, generator=rng))
            self.bias.copy_(bias_KC)

    def restart(self, capsules: Tensor, bias_RC: Tensor) -> None:
        """Give some capsules the mean pose and a new bias."""
        with torch.no_grad():
            self.weight[capsules] = self.weight.mean(0)
            self.bias[capsules] = bias_RC

    def shared(self) -> Tensor:
        """The projection shared by the capsules. Shape: (C, d)."""
        return self.weight.detach().mean(0)


class FactorisedPoses(nn.Module):
    """W_k = P + A_k B_k of rank M: C d + K M (C + d) numbers."""

    def __init__(self, capsules: int, dim: int, width: int, rank: int, rng: torch.Generator) -> None:
        super().__init__()
        self.base = nn.Parameter(torch.randn(dim, width, generator=rng) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(capsules, dim))
        self.up = nn.Parameter(torch.randn(capsules, rank, dim, generator=rng) / dim**0.5)
        self.down = nn.Parameter(torch.randn(capsules, rank, width, generator=rng) / width**0.5)

    def forward(self, r_BD: Tensor, shift_BC: Tensor | None = None) -> FactorisedVotes:
        """Votes of a batch of residuals; `shift` is added to every vote of a row."""
        down_BKM = (r_BD @ self.down.flatten(0, 1).T).view(-1, *self.down.shape[:2])
        base_BC = r_BD @ self.base.T
        return FactorisedVotes(base_BC if shift_BC is None else base_BC + shift_BC, self.bias, self.up, down_BKM)

    def absorb(self, change_CD: Tensor) -> None:
        """Add one matrix to the poses of all capsules."""
        self.base.add_(change_CD)

    def full(self) -> FullPoses:
        """The same poses as matrices, for the twin."""
        k, _m, c = self.up.shape
        poses = FullPoses(k, c, self.base.shape[1], torch.Generator())
        with torch.no_grad():
            poses.weight.copy_(self.base + self.up.transpose(1, 2) @ self.down)
            poses.bias.copy_(self.bias)
        return poses

    def start(self, shared_CD: Tensor, bias_KC: Tensor, noise: float, rng: torch.Generator) -> None:
        """Start from one projection for all capsules, a bias for each, and a little noise."""
        with torch.no_grad():
            self.base.copy_(shared_CD)
            self.bias.copy_(bias_KC)
            _k, m, c = self.up.shape
            self.up.copy_(noise * torch.randn(self.up.shape, generator=rng) / (m * c) ** 0.5)
            self.down.copy_(torch.randn(self.down.shape, generator=rng) / self.down.shape[2] ** 0.5)

    def restart(self, capsules: Tensor, bias_RC: Tensor) -> None:
        """Give some capsules the shared pose and a new bias."""
        with torch.no_grad():
            # A zero A_k would never get a gradient into B_k: shrink what is there instead.
            self.up[capsules] *= 0.1
            self.bias[capsules] = bias_RC

    def shared(self) -> Tensor:
        """The projection shared by the capsules. Shape: (C, d)."""
        return self.base.detach()


Poses = BiasPoses | FullPoses | FactorisedPoses


def new_poses(capsules: int, dim: int, width: int, rank: int, rng: torch.Generator) -> Poses:
    """Poses of the given rank; rank 0 means full matrices, and -1 one matrix for all capsules."""
    if rank < 0:
        return BiasPoses(capsules, dim, width, rng)
    if rank == 0:
        return FullPoses(capsules, dim, width, rng)
    return FactorisedPoses(capsules, dim, width, rank, rng)
