"""The loss terms of stage 1: reconstruction, spread and length (CapsID, arXiv 2605.05096, Eq. 10), tie and balance.

Tie and balance are additions to the paper: without them outputs may drift from the tokens' centres, and few capsules
win all items. Takes the depths of a batch and returns scalars; the margin's schedule is set elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from capsid.tokenize.capsules.network import Depth

# Widths of the sigmoids that replace the stop tests of Eq. 8: the length itself has no gradient.
SURE_WIDTH, SMALL_WIDTH = 0.05, 0.02


@dataclass(frozen=True)
class Terms:
    """Each term of a batch, unweighted."""

    soft: Tensor
    hard: Tensor
    spread: Tensor
    length: Tensor
    tie: Tensor
    balance: Tensor


def survival(depths: list[Depth], confidence: float, residual: float, residual_of: str) -> Tensor:
    """Probability that an id reaches each depth, under smoothed stop rules that read the same residual as the hard
    ones. Shape: (B, depths)."""
    alive_B = torch.ones_like(depths[0].mass_B)
    out = []
    for depth in depths:
        out.append(alive_B)
        sure_B = torch.sigmoid((depth.confidence_B - confidence) / SURE_WIDTH)
        left_BD = depth.hard_BD if residual_of == "hard" else depth.soft_BD
        small_B = torch.sigmoid((residual - left_BD.detach().norm(dim=1)) / SMALL_WIDTH)
        alive_B = alive_B * (1 - sure_B) * (1 - small_B)
    return torch.stack(out, 1)


def reconstruction(residuals: list[Tensor], weight_BL: Tensor) -> Tensor:
    """Mean squared residual of every prefix, weighted by the probability that an id reaches it."""
    squares_BL = torch.stack([r.square().sum(1) for r in residuals], 1)
    return ((squares_BL * weight_BL).sum(1) / weight_BL.sum(1)).mean()


def spread(weights_BK: Tensor, margin: float, rivals: str) -> Tensor:
    """max(0, margin - (c_winner - c_rival))^2, for the strongest rival, or the mean or sum over all.

    The margin follows the spread loss of matrix capsules (Hinton et al., 2018), with the winner as the label."""
    if weights_BK.shape[1] == 1:
        return weights_BK.new_zeros(())
    top_B2, capsule_B2 = weights_BK.topk(2, dim=1)
    if rivals == "strongest":
        return (margin - (top_B2[:, 0] - top_B2[:, 1])).clamp_min(0).square().mean()
    gaps_BK = (margin - (top_B2[:, :1] - weights_BK)).clamp_min(0).square()
    gaps_BK = gaps_BK.scatter(1, capsule_B2[:, :1], 0.0)
    total = gaps_BK.sum(1).mean()
    return total if rivals == "sum" else total / (weights_BK.shape[1] - 1)


def balance(weights_BK: Tensor) -> Tensor:
    """KL divergence of the batch's mean routing weights from uniform."""
    mean_K = weights_BK.mean(0)
    return math.log(len(mean_K)) + (mean_K * mean_K.clamp_min(1e-12).log()).sum()


def tie(depth: Depth, centres_KD: Tensor) -> Tensor:
    """Keeps the winner's output near its token's centre, as Proposition 1 of CapsID assumes."""
    gap_BD = depth.winner_BD - centres_KD[depth.code_B].detach()
    return (depth.mass_B.detach() * gap_BD.square().sum(1)).mean()


def terms(
    depths: list[Depth],
    centres: list[Tensor],
    margins: list[float],
    *,
    rivals: str,
    confidence: float,
    residual: float,
    residual_of: str,
    alone: bool,
) -> Terms:
    """All terms of a batch. Prefixes are weighted by survival where the smooth rules `alone` decide the length.

    Where prefix counts matter too, or nothing ends an id early, all prefixes weigh the same.
    """
    alive_BL = survival(depths, confidence, residual, residual_of)
    weight_BL = alive_BL.detach() if alone else torch.ones_like(alive_BL)
    mean = torch.stack
    return Terms(
        soft=reconstruction([d.soft_BD for d in depths], weight_BL),
        hard=reconstruction([d.hard_BD for d in depths], weight_BL),
        spread=mean([spread(d.routed.weights_BK, m, rivals) for d, m in zip(depths, margins)]).mean(),
        length=alive_BL.mean(),
        tie=mean([tie(d, c) for d, c in zip(depths, centres)]).mean(),
        balance=mean([balance(d.routed.weights_BK) for d in depths]).mean(),
    )
