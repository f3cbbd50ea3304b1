"""The tokenizer's part of the objective (CapsID, arXiv 2605.05096, Eq. 10), one function per term.

`objective` runs Algorithm 1 on a batch, where rows leave as their ids end, and adds up the terms. A term of weight 0 is
not built. Two terms are not the paper's: `codes` makes the tokens carry the item, `balance` keeps capsules in use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from capsid.tokenize.capsules.algorithm import Step, algorithm_one, ends, survival
from capsid.tokenize.capsules.capsules import CapsuleNetwork, Projection
from capsid.tokenize.capsules.settings import CapsuleSettings
from capsid.tokenize.capsules.votes import norm


@dataclass(frozen=True, eq=False)
class Objective:
    """The weighted sum of a batch, its terms by name without their weights, and the steps with their rows."""

    loss: Tensor
    terms: dict[str, Tensor]
    steps: list[tuple[Tensor, Step]]

    def codes(self, rows: int, depths: int) -> Tensor:
        """The codes of the batch, -1 behind the end of an id. Shape: (rows, depths)."""
        out_BL = torch.full((rows, depths), -1)
        for depth, (own, step) in enumerate(self.steps):
            out_BL[own, depth] = step.code_B
        return out_BL


def objective(settings: CapsuleSettings, network: CapsuleNetwork, x_BI: Tensor, share: float) -> Objective:
    """All terms of a batch when `share` of the annealing is done. Ended ids are not routed further."""
    unit_BD = network.enter(x_BI)
    rules = settings.rules
    early = rules.max_sharing == 0

    def ended(_depth: int, rows: Tensor, step: Step) -> Tensor:
        if not early or step.confidence_B is None:
            return torch.zeros(len(rows), dtype=torch.bool)
        return ends(step.confidence_B, step.r_BD.norm(dim=1), rules.confidence, rules.residual).detach()

    steps = list(algorithm_one(network.depths, unit_BD, ended))
    s = settings
    marked = list(zip(steps, s.margins(share)))
    weighted = {
        "route": (1.0, lambda: route(unit_BD, steps)),
        "codes": (s.codes_weight, lambda: codes(unit_BD, steps, network)),
        "spread": (s.spread_weight, lambda: mean_of(spread(t.weights_BK, m, s.rivals) for (_, t), m in marked)),
        "length": (s.length_weight, lambda: length(steps, rules.confidence, rules.residual)),
        "balance": (s.balance_weight, lambda: mean_of(balance(t.weights_BK) for _, t in steps)),
        "decoding": (float(network.project is not None), lambda: decoding(network.project, x_BI, unit_BD)),
    }
    terms = {name: make() for name, (weight, make) in weighted.items() if weight}
    return Objective(sum(weighted[name][0] * term for name, term in terms.items()), terms, steps)  # type: ignore[arg-type]


def route(unit_BD: Tensor, steps: list[tuple[Tensor, Step]]) -> Tensor:
    """L_route: the squared final residual, |x - x^|^2, where x^ sums the routed reconstructions to the id's end."""
    last_BD = unit_BD
    for rows, step in steps:
        last_BD = last_BD.index_copy(0, rows, step.r_BD)
    return last_BD.square().sum(1).mean()


def codes(unit_BD: Tensor, steps: list[tuple[Tensor, Step]], network: CapsuleNetwork) -> Tensor:
    """The squared error of the tokens' centres at every prefix; the gradient reaches the weights as if all were mixed.
    The soft residual can be small while tokens say little, because outputs depend on the item. This is what they
    say."""
    left_BD, total, count = unit_BD, unit_BD.new_zeros(()), 0
    for (rows, step), capsules in zip(steps, network.depths):
        hard_BK = torch.zeros_like(step.weights_BK).scatter_(1, step.code_B[:, None], 1.0)
        chosen_BD = (hard_BK + step.weights_BK - step.weights_BK.detach()) @ capsules.centres
        own_BD = left_BD[rows] - chosen_BD
        total, count = total + own_BD.square().sum(), count + len(rows)
        left_BD = left_BD.index_copy(0, rows, own_BD)
    return total / count


def spread(weights_BK: Tensor, margin: float, rivals: str) -> Tensor:
    """L_spread: max(0, margin - (c_winner - c_rival))^2, for the strongest rival, or the mean or sum over all. The
    paper does not define it. This is the spread loss of matrix capsules (Hinton et al., 2018) with the winner as the
    label."""
    if weights_BK.shape[1] == 1:
        return weights_BK.new_zeros(())
    top_B2, capsule_B2 = weights_BK.topk(2, dim=1)
    if rivals == "strongest":
        return (margin - (top_B2[:, 0] - top_B2[:, 1])).clamp_min(0).square().mean()
    gaps_BK = (margin - (top_B2[:, :1] - weights_BK)).clamp_min(0).square()
    total = gaps_BK.scatter(1, capsule_B2[:, :1], 0.0).sum(1).mean()
    return total if rivals == "sum" else total / (weights_BK.shape[1] - 1)


def length(steps: list[tuple[Tensor, Step]], tau: float, epsilon: float) -> Tensor:
    """L_len: the mean length E[L], with the gradient of both rules, which are smoothed."""
    items = len(steps[0][0])
    alive_B = steps[0][1].r_BD.new_ones(items)
    smooth, count = alive_B.new_zeros(()), 0
    for rows, step in steps:
        own_R = alive_B[rows]
        smooth, count = smooth + own_R.sum(), count + len(rows)
        if step.confidence_B is not None:
            own_R = own_R * survival(step.confidence_B, norm(step.r_BD), tau, epsilon)
        alive_B = alive_B.index_copy(0, rows, own_R)
    return (count + smooth - smooth.detach()) / items


def balance(weights_BK: Tensor) -> Tensor:
    """KL divergence of the batch's mean routing weights from uniform."""
    mean_K = weights_BK.mean(0)
    return math.log(len(mean_K)) + (mean_K * mean_K.clamp_min(1e-12).log()).sum()


def decoding(project: nn.Module | None, x_BI: Tensor, unit_BD: Tensor) -> Tensor:
    """Error of the projection's decoder: without it, a constant projection would be reconstructed perfectly."""
    assert isinstance(project, Projection)
    return (project.decode(unit_BD) - x_BI / norm(x_BI)[:, None]).square().sum(1).mean()


def mean_of(values: object) -> Tensor:
    """The mean of one number per depth."""
    return torch.stack(list(values)).mean()  # type: ignore[call-overload]
