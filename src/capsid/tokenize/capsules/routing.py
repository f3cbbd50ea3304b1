"""Routing by agreement at one depth: T rounds that make the capsules' votes agree (CapsID, Eqs. 2 to 5).

Works on any `Votes`; knows no parameters and no residuals.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from capsid.tokenize.capsules.votes import Votes, norm, squash_scale


@dataclass(frozen=True)
class Rounds:
    """How to route. `pre` reads the weights of round T, made from T - 1 agreements, exactly as in Algorithm 1.

    `post` applies the softmax once more, so that all T agreements count; with `pre`, T = 1 gives uniform weights.
    Agreement is the votes' product with the consensus (`dot`) or their cosine (`cosine`), times the depth's
    temperature.
    """

    rounds: int = 3
    readout: str = "post"
    agreement: str = "cosine"

    @property
    def updates(self) -> int:
        """Agreement updates before the read-out."""
        return self.rounds if self.readout == "post" else self.rounds - 1


@dataclass(frozen=True, eq=False)
class Routed:
    """Weights and consensus of the same round."""

    logits_BK: Tensor
    weights_BK: Tensor
    consensus_BC: Tensor


def route(votes: Votes, capsules: int, rows: int, how: Rounds, kappa: Tensor | float, *, agreed: bool = True) -> Routed:
    """Weights c and consensus o after the rounds; without `agreed`, the last consensus is left out (an empty one)."""
    inverse_BK = votes.norms().reciprocal() if how.agreement == "cosine" else None
    mixed_BC = votes.mean()
    norm_B1 = norm(mixed_BC)[:, None]
    weights_BK = logits_BK = mixed_BC.new_zeros(0)
    if not how.updates:
        weights_BK = mixed_BC.new_full((rows, capsules), 1.0 / capsules)
        logits_BK = torch.zeros_like(weights_BK)
    for number in range(how.updates):
        # All votes of a row are multiplied with one vector, which includes the temperature. A cosine needs no squash:
        # only the direction of the consensus counts.
        scale_B1 = kappa * squash_scale(norm_B1) if inverse_BK is None else kappa / norm_B1
        if number == 0:
            # The first consensus is the mean, whose products the votes may have cached. Logits begin at 0.
            dots_BK = votes.dot_mean(scale_B1)
            logits_BK = dots_BK if inverse_BK is None else dots_BK * inverse_BK
        else:
            dots_BK = votes.dot(mixed_BC * scale_B1)
            logits_BK = logits_BK + dots_BK if inverse_BK is None else logits_BK.addcmul_(dots_BK, inverse_BK)
        weights_BK = logits_BK.softmax(1)
        if not agreed and number == how.updates - 1:
            return Routed(logits_BK, weights_BK, mixed_BC.new_zeros(0))
        mixed_BC = votes.mix(weights_BK)
        norm_B1 = norm(mixed_BC)[:, None]
    return Routed(logits_BK, weights_BK, mixed_BC * squash_scale(norm_B1))
