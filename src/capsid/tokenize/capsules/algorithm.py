"""CapsID's Algorithm 1 (arXiv 2605.05096). Fit, encode, add, report and explain all run this code.

    line 1       x / |x|                                   `CapsuleNetwork.enter`, the input of `algorithm_one`
    line 2       for l = 1 .. L_max                        `algorithm_one`
    line 3       votes u_k = W_k r + b_k           Eq. 1   `Capsules.votes`, asked by `one_depth`
    lines 4-8    T rounds of agreement        Eqs. 2 to 5  `agree`, `squash`
    line 9       token s, confidence q             Eq. 6   `one_depth`
    line 10      o_k, r - sum_k c_k o_k            Eq. 7   `one_depth`, `reconstruct`
    lines 11-13  the id ends                       Eq. 8   `ends`; `survival` is its smooth twin for the loss

`reference.py` says the same in loops, for one item. Knows no losses, no files and no catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from capsid.tokenize.capsules.capsules import Capsules
from capsid.tokenize.capsules.settings import Form
from capsid.tokenize.capsules.votes import Votes, norm

# Widths of the sigmoids that replace the two tests of Eq. 8: a length itself has no gradient.
SURE_WIDTH, SMALL_WIDTH = 0.05, 0.02
Residual = TypeVar("Residual")


@dataclass(frozen=True, eq=False)
class Step:
    """One depth of a batch: weights c, token s, its weight, confidence q, the reconstruction z, and what is left."""

    weights_BK: Tensor
    code_B: Tensor
    mass_B: Tensor
    confidence_B: Tensor | None
    z_BD: Tensor
    r_BD: Tensor


def squash_scale(norms: Tensor) -> Tensor:
    """squash(z) = squash_scale(|z|) z: the norm becomes |z|^2 / (0.5 + |z|^2). Safe at zero."""
    return norms / (0.5 + norms.square())


def squash(z_BC: Tensor) -> Tensor:
    """The paper's squash (section 3.1): keeps the direction."""
    return z_BC * squash_scale(norm(z_BC))[:, None]


def agree(
    votes: Votes, capsules: int, form: Form, kappa: Tensor | float = 1.0, *, consensus: bool = True
) -> tuple[Tensor, Tensor | None]:
    """The weights c and the consensus o after the rounds (Eqs. 2 to 5). Logits start at 0, so the first c is 1/K.

    The form says whether agreement sees the votes' directions (appendix A.1) and the consensus's, and how many
    agreements are made before c is read: T - 1 in Algorithm 1. `kappa` is the depth's temperature. Without
    `consensus`, the last o is left out.
    """
    inverse_BK = votes.norms().reciprocal() if form.unit_votes else None
    mixed_BC = votes.mean()
    norm_B1 = norm(mixed_BC)[:, None]
    c_BK = a_BK = mixed_BC.new_full((1, 1), 1 / capsules).expand(len(mixed_BC), capsules)
    for number in range(form.agreements):
        # a += kappa u . o, where o is the squashed mixture or its direction: one product with a scaled vector.
        scale_B1 = kappa / norm_B1 if form.unit_consensus else kappa * squash_scale(norm_B1)
        dots_BK = votes.dot(mixed_BC * scale_B1) if number else votes.dot_mean(scale_B1)
        if number == 0:
            a_BK = dots_BK if inverse_BK is None else dots_BK * inverse_BK
        else:
            a_BK = a_BK + dots_BK if inverse_BK is None else a_BK.addcmul_(dots_BK, inverse_BK)
        c_BK = a_BK.softmax(1)
        if not consensus and number == form.agreements - 1:
            return c_BK, None
        mixed_BC = votes.mix(c_BK)
        norm_B1 = norm(mixed_BC)[:, None]
    return c_BK, mixed_BC * squash_scale(norm_B1)


def one_depth(capsules: Capsules, r_BD: Tensor, *, confident: bool = True) -> Step:
    """Lines 3 to 10 for a batch of residuals. Among equal weights the first capsule wins."""
    votes = capsules.votes(r_BD)
    c_BK, o_BC = agree(votes, len(capsules), capsules.form, capsules.kappa, consensus=confident)
    mass_B, code_B = c_BK.max(1)
    z_BD = reconstruct(capsules, votes, c_BK, code_B)
    return Step(c_BK, code_B, mass_B, None if o_BC is None else mass_B * norm(o_BC), z_BD, r_BD - z_BD)


def reconstruct(capsules: Capsules, votes: Votes, c_BK: Tensor, code_B: Tensor) -> Tensor:
    """z = sum_k c_k o_k (Eq. 7), with o_k = squash(u_k) decoded to the items' width, or fixed; eta is `step`. With
    `winner=hard` the winner alone is subtracted, and the gradient reaches c as if all were."""
    if capsules.hard_winner:
        c_BK = torch.zeros_like(c_BK).scatter_(1, code_B[:, None], 1.0) + (c_BK - c_BK.detach())
    if capsules.outputs is not None:
        return capsules.step * (c_BK @ capsules.outputs)
    return capsules.step * capsules.decoded(votes.mix(c_BK * squash_scale(votes.norms())))


def ends(confidence: Any, residual: Any, tau: float, epsilon: float) -> Any:
    """Whether an id may end (Eq. 8): q >= tau or |r| <= epsilon. Arrays or tensors of any shape."""
    return (confidence >= tau) | (residual <= epsilon)


def survival(confidence: Tensor, residual: Tensor, tau: float, epsilon: float) -> Tensor:
    """How surely an id goes on: `ends` with a gradient for both rules."""
    sure, small = (confidence - tau) / SURE_WIDTH, (epsilon - residual) / SMALL_WIDTH
    return (1 - torch.sigmoid(sure)) * (1 - torch.sigmoid(small))


def algorithm_one(
    depths: list[Capsules],
    unit: Any,
    ended: Callable[[int, Tensor, Any], Tensor],
    advance: Callable[[Capsules, Any], Any] = one_depth,
) -> Iterator[tuple[Tensor, Any]]:
    """Lines 2 to 13: for each depth, the rows whose id has not ended and their step. Ended rows leave at once.
    `ended(depth, rows, step)` tells which of them end there. `advance` is `one_depth`, or does the same block by block
    with residuals of its own; residuals need only be cut by a mask."""
    rows, r = torch.arange(len(unit)), unit
    for number, capsules in enumerate(depths):
        step = advance(capsules, r)
        yield rows, step
        stays = ~ended(number, rows, step)
        if not stays.any():
            return
        rows, r = (rows, step.r_BD) if stays.all() else (rows[stays], step.r_BD[stays])
