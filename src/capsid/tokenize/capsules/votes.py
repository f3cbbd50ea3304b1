"""Votes of capsules (CapsID, Eq. 1): one pose matrix per depth, or one per capsule.

Full votes u (B, K, C) come from one product with the bias folded in. Everything that routing reads of them is a product
with a vector (`dot`), a mixture (`mix`) or a norm, and the gradient of each with respect to u has rank 1 in every row,
or is a multiple of u. So each of them leaves its two factors behind, and the gradient of the votes is one batched
product of the stacked factors, computed once in the memory of the votes themselves. Plain autograd would write a
gradient of (B, K, C) for every use. Knows nothing about rounds, tokens or depths.
"""

from __future__ import annotations

from typing import Any, Protocol

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
        return torch.addmm((self.base_BC * other_BC).sum(1, keepdim=True), other_BC, self.bias_KC.T)

    def norms(self) -> Tensor:
        # In place: these tensors are as large as the caches.
        squares_BK = (self.square_B1 + self.bias_KC.square().sum(1)).add_(self.cross_BK, alpha=2)
        return squares_BK.clamp_min_(TINY**2).sqrt_()

    def mean(self) -> Tensor:
        return self.base_BC + self.bias_KC.mean(0)

    def dot_mean(self, scale_B1: Tensor) -> Tensor:
        """u_k . scale mean, without recomputing p . b_k. Shape: (B, K)."""
        mean_C = self.bias_KC.mean(0)
        base_B1 = self.square_B1 + (self.base_BC @ mean_C)[:, None]
        return (self.cross_BK + base_B1).add_(self.bias_KC @ mean_C).mul_(scale_B1)

    def mix(self, weights_BK: Tensor) -> Tensor:
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

    def shared(self) -> Tensor:
        """The projection shared by the capsules. Shape: (C, d)."""
        return self.base.detach()


class _Factors:
    """The votes of a batch, and what the gradient of the votes is made of: sum_m left_m right_m^T + scale u."""

    def __init__(self) -> None:
        self.left: list[Tensor] = []
        self.right: list[Tensor] = []
        self.scale_BK: Tensor | None = None
        self.u_BKC = torch.empty(0)

    def add(self, left_BK: Tensor, right_BC: Tensor) -> None:
        # Detached: a factor that remembers how it was made would hold the whole graph, which holds this object.
        self.left.append(left_BK.detach())
        self.right.append(right_BC.detach())

    def gradient(self) -> Tensor:
        """The gradient of the votes, written over the votes: nobody reads them afterwards. Shape: (B, K, C)."""
        grad_BKC = self.u_BKC
        if self.scale_BK is None:
            grad_BKC.zero_()
        else:
            grad_BKC.mul_(self.scale_BK[:, :, None])
        if self.left:
            grad_BKC.baddbmm_(torch.stack(self.left, 2), torch.stack(self.right, 1))
        self.left, self.right, self.scale_BK, self.u_BKC = [], [], None, torch.empty(0)
        return grad_BKC


class _Make(torch.autograd.Function):
    """u = W r + b (+ a shift of each row). The output is an empty handle. Every use of the votes takes it, so that this
    comes last backward."""

    @staticmethod
    def forward(
        ctx: Any, r_BD: Tensor, weight_KCD: Tensor, bias_KC: Tensor, shift_BC: Tensor | None, factors: _Factors
    ) -> Tensor:
        k, c, d = weight_KCD.shape
        factors.u_BKC = torch.addmm(bias_KC.view(-1), r_BD, weight_KCD.view(k * c, d).T).view(-1, k, c)
        if shift_BC is not None:
            factors.u_BKC += shift_BC[:, None]
        ctx.save_for_backward(r_BD, weight_KCD)
        ctx.factors = factors
        return r_BD.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        r_BD, weight_KCD = ctx.saved_tensors
        k, c, d = weight_KCD.shape
        grad_BKC = ctx.factors.gradient()
        grad_BM = grad_BKC.view(len(r_BD), k * c)
        grad_r = grad_BM @ weight_KCD.view(k * c, d) if ctx.needs_input_grad[0] else None
        grad_w = (grad_BM.T @ r_BD).view(k, c, d) if ctx.needs_input_grad[1] else None
        grad_b = grad_BM.sum(0).view(k, c) if ctx.needs_input_grad[2] else None
        grad_s = grad_BKC.sum(1) if ctx.needs_input_grad[3] else None
        return grad_r, grad_w, grad_b, grad_s, None


class _Dot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, handle: Tensor, other_BC: Tensor, factors: _Factors) -> Tensor:
        ctx.save_for_backward(other_BC)
        ctx.factors = factors
        return _dot(factors.u_BKC, other_BC)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (other_BC,), factors, grad_BK = ctx.saved_tensors, ctx.factors, grads[0]
        factors.add(grad_BK, other_BC)
        return grad_BK.new_empty(0), (grad_BK[:, None, :] @ factors.u_BKC)[:, 0], None


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, handle: Tensor, weights_BK: Tensor, factors: _Factors) -> Tensor:
        ctx.save_for_backward(weights_BK)
        ctx.factors = factors
        return (weights_BK[:, None, :] @ factors.u_BKC)[:, 0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weights_BK,), factors, grad_BC = ctx.saved_tensors, ctx.factors, grads[0]
        factors.add(weights_BK, grad_BC)
        grad_w = _dot(factors.u_BKC, grad_BC) if ctx.needs_input_grad[1] else None
        return grad_BC.new_empty(0), grad_w, None


class _Norms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, handle: Tensor, factors: _Factors) -> Tensor:
        norms_BK = torch.linalg.vector_norm(factors.u_BKC, dim=2).clamp_min_(TINY)
        ctx.save_for_backward(norms_BK)
        ctx.factors = factors
        return norms_BK

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (norms_BK,), factors = ctx.saved_tensors, ctx.factors
        scale_BK = grads[0] / norms_BK
        factors.scale_BK = scale_BK if factors.scale_BK is None else factors.scale_BK + scale_BK
        return grads[0].new_empty(0), None


def _dot(u_BKC: Tensor, other_BC: Tensor) -> Tensor:
    # A row times a matrix takes a ninth of the time of a matrix times a column here.
    return (other_BC[:, None, :] @ u_BKC.transpose(1, 2))[:, 0]


class FullVotes:
    """The votes of a batch. Backward may run once: it overwrites the votes."""

    def __init__(self, r_BD: Tensor, weight_KCD: Tensor, bias_KC: Tensor, shift_BC: Tensor | None = None) -> None:
        self._factors = _Factors()
        self._handle: Tensor = _Make.apply(r_BD, weight_KCD, bias_KC, shift_BC, self._factors)
        self.rows, self.capsules = len(r_BD), len(bias_KC)
        self._norms: Tensor | None = None

    def dot(self, other_BC: Tensor) -> Tensor:
        return _Dot.apply(self._handle, other_BC, self._factors)

    def norms(self) -> Tensor:
        if self._norms is None:
            self._norms = _Norms.apply(self._handle, self._factors)
        return self._norms

    def mean(self) -> Tensor:
        return self.mix(self._handle.new_full((self.rows, self.capsules), 1.0 / self.capsules))

    def dot_mean(self, scale_B1: Tensor) -> Tensor:
        return self.dot(scale_B1 * self.mean())

    def mix(self, weights_BK: Tensor) -> Tensor:
        return _Mix.apply(self._handle, weights_BK, self._factors)


class FullPoses(nn.Module):
    """One matrix per capsule, K C d parameters: exactly Eq. 1 of CapsID."""

    def __init__(self, capsules: int, dim: int, width: int, rng: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(capsules, dim, width, generator=rng) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(capsules, dim))

    def forward(self, r_BD: Tensor, shift_BC: Tensor | None = None) -> FullVotes:
        """Votes of a batch of residuals; `shift` is added to every vote of a row."""
        return FullVotes(r_BD, self.weight, self.bias, shift_BC)

    @torch.no_grad()
    def absorb(self, change_CD: Tensor) -> None:
        """Add one matrix to the poses of all capsules."""
        self.weight.add_(change_CD)

    @torch.no_grad()
    def start(self, shared_CD: Tensor, bias_KC: Tensor, noise: float, rng: torch.Generator) -> None:
        """Start from one projection for all capsules, a bias for each, and a little noise in proportion to it."""
        scale = noise * shared_CD.norm() / shared_CD.numel() ** 0.5
        self.weight.copy_(shared_CD + scale * torch.randn(self.weight.shape, generator=rng))
        self.bias.copy_(bias_KC)

    def shared(self) -> Tensor:
        """The projection shared by the capsules. Shape: (C, d)."""
        return self.weight.detach().mean(0)
