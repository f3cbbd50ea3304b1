"""Routing by agreement at one depth: T rounds that make the capsules' votes agree (CapsID, Eqs. 2 to 5).

Works on any `Votes`; knows no parameters and no residuals.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from capsid.tokenize.capsules.votes import TINY, Votes, norm, squash


@dataclass(frozen=True)
class Rounds:
    """How to route. `pre` reads the weights of round T, made from T - 1 agreements: Algorithm 1 to the letter.

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


def route(votes: Votes, capsules: int, rows: int, how: Rounds, kappa: Tensor | float) -> Routed:
    """Weights c and consensus o after the rounds."""
    norms_BK = votes.norms() if how.agreement == "cosine" else None
    logits_BK = torch.zeros(rows, capsules)
    weights_BK = torch.full((rows, capsules), 1.0 / capsules)
    consensus_BC = squash(votes.mix(weights_BK))
    for _ in range(how.updates):
        agreement_BK = votes.dot(consensus_BC)
        if norms_BK is not None:
            agreement_BK = agreement_BK / (norms_BK * norm(consensus_BC)[:, None]).clamp_min(TINY)
        logits_BK = logits_BK + kappa * agreement_BK
        weights_BK = logits_BK.softmax(1)
        consensus_BC = squash(votes.mix(weights_BK))
    return Routed(logits_BK, weights_BK, consensus_BC)
