"""Cross-entropy of a linear layer with soft targets over groups of tokens, with gradients computed in forward.

The probability of a group is the sum of its tokens' probabilities. Works in chunks of rows like `linear_cross_entropy`,
of which it is a plain relative: it needs the sums of groups between the two products. The tests compare with torch.
Shapes: N rows, D width, V tokens, G groups, E entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from capsid.base.blocks.cross_entropy import Added, nothing_added

# A chunk's scores should fit in the caches.
CHUNK_NUMBERS = 1 << 20


@dataclass(frozen=True, eq=False)
class GroupTargets:
    """Group `group_V[v]` of every token, and shares of the target: row `rows_E[e]` gives `shares_E[e]` to a group.

    The shares of a row sum to 1; entries are sorted by row and no pair of row and group occurs twice.
    """

    group_V: Tensor
    rows_E: Tensor
    groups_E: Tensor
    shares_E: Tensor


class _GroupCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, values_A: Tensor, targets: GroupTargets, added: Added
    ) -> Tensor:
        rows, vocabulary = len(hidden_ND), len(weight_VD)
        groups = int(targets.group_V.max()) + 1
        chunk = max(1, min(rows, CHUNK_NUMBERS // vocabulary))
        grad_hidden, grad_weight = torch.empty_like(hidden_ND), torch.zeros_like(weight_VD)
        total, grad_values = torch.zeros((), dtype=torch.float64), torch.empty_like(values_A)
        for start in range(0, rows, chunk):
            h_CD = hidden_ND[start : start + chunk]
            ends = torch.tensor([start, start + len(h_CD)])
            low, high = torch.searchsorted(added.rows_E, ends).tolist()
            plus = added.rows_E[low:high] - start, added.tokens_E[low:high]
            scores_CV = h_CD @ weight_VD.T
            scores_CV[plus] += values_A[low:high]
            odds_CV = scores_CV.sub_(scores_CV.amax(1, keepdim=True)).exp_()
            sums_CG = odds_CV.new_zeros(len(h_CD), groups).index_add_(1, targets.group_V, odds_CV)
            # A group whose odds are all too small for a float has the smallest one.
            sums_CG.clamp_min_(torch.finfo(odds_CV.dtype).tiny)
            whole_C1 = odds_CV.sum(1, keepdim=True)
            first, last = torch.searchsorted(targets.rows_E, ends).tolist()
            pairs = targets.rows_E[first:last] - start, targets.groups_E[first:last]
            shares_E = targets.shares_E[first:last]
            total += whole_C1.log().sum(dtype=torch.float64)
            total -= (shares_E * sums_CG[pairs].log()).sum(dtype=torch.float64)
            # The gradient of a score: its probability minus its part of what the target gives to its group.
            per_odds_CG = torch.zeros_like(sums_CG)
            per_odds_CG[pairs] = shares_E / sums_CG[pairs]
            grad_CV = odds_CV.mul_(1 / whole_C1 - per_odds_CG[:, targets.group_V])
            torch.mm(grad_CV, weight_VD, out=grad_hidden[start : start + chunk])
            grad_weight.addmm_(grad_CV.T, h_CD)
            grad_values[low:high] = grad_CV[plus]
        ctx.save_for_backward(grad_hidden, grad_weight, grad_values)
        return total.to(hidden_ND.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, grad_values = (saved * grads[0] for saved in ctx.saved_tensors)
        return grad_hidden, grad_weight, grad_values, None, None


def group_cross_entropy(
    hidden_ND: Tensor, weight_VD: Tensor, targets: GroupTargets, *, added: Added | None = None
) -> Tensor:
    """Summed cross-entropy of the groups' probabilities under `hidden @ weight.T` and the shares of the targets."""
    added = added or nothing_added()
    loss: Tensor = _GroupCrossEntropy.apply(hidden_ND, weight_VD, added.values_E, targets, added)
    return loss
